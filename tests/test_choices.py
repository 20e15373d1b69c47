"""Every choice is stated once: what is written elsewhere for each of them is complete."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from importlib.resources import files

from tts_batch import choices
from tts_batch.bench.engines import SHAPES
from tts_batch.engine.choices import PROFILES
from tts_batch.ipc.messages import CheckLimits
from tts_batch.model.tiny import NAMES
from tts_batch.store.clips import check_format


def test_importing_them_loads_nothing_heavy() -> None:
    code = "import sys, tts_batch.choices; print(*{'torch', 'pydantic', 'numpy', 'click', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_each_is_there() -> None:
    assert choices.TINY_MODELS == NAMES
    assert tuple(SHAPES) == choices.BENCH_SHAPES
    assert {field.name for field in fields(CheckLimits)} == set(choices.CHECKS)
    profiles = (files("tts_batch") / "profiles").iterdir()
    assert {file.name for file in profiles} == {f"{name}.yaml" for name in PROFILES}
    for name in choices.FORMATS:
        check_format(name)
