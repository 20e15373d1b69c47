"""The scripts and tables under examples/ do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.docs.markdown import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_a_script_is_short(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize(("script", "wavs"), [("speak.py", 4), ("synth_rows.py", 2)])
def test_a_script_makes_its_clips(script: str, wavs: int, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", EXAMPLES / script, tmp_path / "out", "tiny"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").rglob("*.wav"))) == wavs


def test_the_tables_are_what_their_script_makes(tmp_path: Path) -> None:
    code = "import sys, pathlib, make_tables; make_tables.main(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=EXAMPLES, check=True)
    for name in ("hello.parquet", "languages.parquet"):
        assert pq.read_table(tmp_path / name).equals(pq.read_table(EXAMPLES / name))
    clone = EXAMPLES / "clone.parquet"
    made, kept = pq.read_table(tmp_path / clone.name), pq.read_table(clone)
    assert made.drop_columns("ref_audio").equals(kept.drop_columns("ref_audio"))  # a sine's last bit is the CPU's own
