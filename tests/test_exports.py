"""The public names are a promise: this test is where a change of them is seen."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import tts_batch

PUBLIC = [
    "REASONS",
    "CannotContinueError",
    "Clip",
    "DuplicateRequest",
    "Engine",
    "EngineConfig",
    "EngineConfigError",
    "EngineError",
    "ExitStatus",
    "Failure",
    "FunctionEngine",
    "JobConfig",
    "JobOptions",
    "JobSummary",
    "OnChunk",
    "Reason",
    "Reference",
    "RowError",
    "SamplingParams",
    "SpeechRequest",
    "SpeechResult",
    "StoppedEarlyError",
    "SynthResult",
    "Synthesizer",
    "TTSBatchError",
    "UsageError",
    "__version__",
    "generate",
    "open_engine",
    "synth",
]
MAX_HELP_LINES = 400


def test_public_names() -> None:
    assert sorted(tts_batch.__all__) == sorted(PUBLIC)
    assert set(dir(tts_batch)) < set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(tts_batch, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'synthesize'"):
        _ = tts_batch.synthesize


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, tts_batch; print(*{'torch', 'pydantic', 'pyarrow', 'numpy', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def _signatures() -> list[Any]:
    """Every public function, and every public method of a public class that is written here."""
    found: list[Any] = []
    for name in PUBLIC:
        value = getattr(tts_batch, name)
        if inspect.isfunction(value):
            found.append(value)
        elif inspect.isclass(value):
            members = [member for key, member in vars(value).items() if not key.startswith("_")]
            found += [member.fget if isinstance(member, property) else member for member in members]
    return [member for member in found if inspect.isfunction(member)]


def test_what_is_returned_is_public() -> None:
    """Of this package's classes, and those of its dataclasses' fields, only public ones reach a caller."""
    classes = [value for name in PUBLIC if inspect.isclass(value := getattr(tts_batch, name))]
    hints = [get_type_hints(one, vars(sys.modules[one.__module__])) for one in classes]
    annotations = [member.__annotations__.get("return", "") for member in _signatures()]
    shown = " ".join([*map(str, annotations), *(str(hint) for fields in hints for hint in fields.values())])
    public = {f"{one.__module__}.{one.__qualname__}" for one in classes}
    named = {word.strip("[](),'<>") for word in shown.replace("[", " ").split() if "tts_batch." in word}
    assert named <= public
    assert any("JobSummary" in name for name in named)


def test_help_is_short_and_names_everything() -> None:
    shown = pydoc.render_doc(tts_batch, renderer=pydoc.plaintext)
    assert shown.count("\n") < MAX_HELP_LINES
    assert [name for name in PUBLIC if name not in shown] == ["__version__"]
    assert tts_batch.__version__ in shown


def test_type_checkers_find_the_types() -> None:
    """The marker lies in the package, which is in the wheel as a whole."""
    root = Path(__file__).parents[1]
    assert (root / "tts_batch" / "py.typed").read_text() == ""
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["tts_batch"]}
