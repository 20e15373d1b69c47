"""The public names are a promise: this test is where a change of them is seen."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tts_batch

PUBLIC = [
    "CannotContinueError",
    "Clip",
    "ExitStatus",
    "JobConfig",
    "RowError",
    "SynthResult",
    "Synthesizer",
    "TTSBatchError",
    "UsageError",
    "__version__",
    "synth",
]


def test_public_names() -> None:
    assert tts_batch.__all__ == PUBLIC
    assert dir(tts_batch) == PUBLIC


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
