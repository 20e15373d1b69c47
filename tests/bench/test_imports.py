"""A bench without a checkpoint needs few packages besides torch and numpy, as on a rented GPU machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """if True:
    import importlib, pkgutil, sys

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {"pydantic", "pyarrow", "soundfile", "librosa", "soxr"}:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Missing())
    import tts_batch.bench
    from tts_batch.bench import engines, workload
    from tts_batch.cli.main import main
    from tts_batch.engine.request import EngineConfig
    from tts_batch.model.tiny import build_tiny

    for module in pkgutil.iter_modules(tts_batch.bench.__path__):
        importlib.import_module(f"tts_batch.bench.{module.name}")
    small = EngineConfig(model=str(build_tiny("tiny-random", "base")), device="cpu")
    engines.random_model = lambda shape, config: engines.load_model(small)  # the released shapes are large
    workload.MIN_FRAMES = workload.MAX_FRAMES = 2
    options = ["--shape", "0.6b", "--device", "cpu", "--rows", "1", "--references", "1"]
    sys.exit(main(["bench", *options]))
"""


def test_a_released_shape_needs_few_packages(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " 1/1" in done.stdout
