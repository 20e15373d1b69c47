"""open_engine: our engine by name, anyone's by module:factory, and sentences for the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engine.asking import ask
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import EngineConfig
from tts_batch.model.tiny import build_tiny

MODULE = """
class Silent:
    sample_rate, info, num_wanted = 8000, {}, 1
    def __init__(self, config): self.config = config
    def add_request(self, request): pass
    def abort_request(self, request_id): pass
    def step(self, timeout_s): return []
    def close(self): pass

def make(config): return Silent(config)
def speak(request): return [0.1] * 80, 8000
def speak_all(requests): return [speak(request) for request in requests]
def choose(config): return speak_all
def fail(config): raise OSError("no licence")
def forget(config): return object()
number = 3
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own in the working folder."""
    (tmp_path / "my_tts_engine.py").write_text(MODULE)
    (tmp_path / "my_broken_engine.py").write_text("import no_such_package_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "my_tts_engine", raising=False)
    return "my_tts_engine"


def test_a_factory_in_the_working_folder(spec: str) -> None:
    config = EngineConfig(model="anything")
    engine = open_engine(f"{spec}:make", config)
    assert engine.sample_rate == 8_000
    assert engine.config is config


@pytest.mark.parametrize(("name", "num_wanted"), [("speak", 2), ("speak_all", 6), ("choose", 6)])
def test_a_function_in_the_working_folder(spec: str, name: str, num_wanted: int) -> None:
    engine = open_engine(f"{spec}:{name}", EngineConfig(model="anything", max_num_seqs=3))
    assert engine.num_wanted == num_wanted
    results = list(generate(engine, [ask(str(i)) for i in range(7)]))
    engine.close()
    assert {(r.finish_reason, r.audio.size, r.sample_rate) for r in results} == {("stop", 80, 8_000)}


def test_native() -> None:
    config = EngineConfig(model=str(build_tiny("tiny-random", "custom_voice")), device="cpu")
    engine = open_engine("native", config)
    assert isinstance(engine, NativeEngine)
    engine.close()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("vllm", r"vllm and vllm-omni not installed: pip install \"tts-batch\[vllm\]\""),
        ("natve", "'natve' is not one of native, vllm, package.module:factory"),
        ("my_tts_engine:", "is not one of"),
        ("my_tts_engine:absent", "no factory or function 'absent'"),
        ("my_tts_engine:number", "no factory or function 'number'"),
        ("my_tts_engine:fail", "OSError: no licence"),
        ("my_tts_engine:forget", "returned object, which is neither an Engine, with .* nor a function of `requests`"),
        ("no_such_module_at_all:make", "ModuleNotFoundError"),
        ("my_broken_engine:make", "no_such_package_at_all"),
    ],
)
def test_what_is_no_engine_is_said(spec: str, named: str, message: str) -> None:
    with pytest.raises(EngineConfigError, match=message):
        open_engine(named, EngineConfig(model="anything"))
