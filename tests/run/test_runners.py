"""A run on runner v2 leaves what a run on runner v1 leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from tts_batch.cli.main import main

ROWS = """id,text,speaker,language
one,Hello there.,ryan,english
two,A second and somewhat longer sentence.,eric,
three,,ryan,
four,Good bye.,nobody,
"""
RUNNERS_OWN = {"runner", "fingerprint", "peak", "rms_dbfs"}  # of a sample's last bits


def test_the_same_manifest(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(ROWS)
    manifests = {}
    for runner in ("v1", "v2"):
        out = tmp_path / runner
        command = ["synth", str(table), "--out", str(out), "--model", "tiny", "--greedy", "--runner", runner]
        assert main([*command, "--progress", "none"]) == 3  # two rows cannot be spoken
        manifests[runner] = pq.read_table(out / "manifest.parquet").to_pylist()
    for one, two in zip(manifests["v1"], manifests["v2"], strict=True):
        assert {key: value for key, value in one.items() if key not in RUNNERS_OWN} == {
            key: value for key, value in two.items() if key not in RUNNERS_OWN
        }
    spoken = [row for row in manifests["v2"] if row["status"] == "ok"]
    assert [row["id"] for row in spoken] == ["one", "two"]
    assert {row["runner"] for row in spoken} == {"v2"}
    (engine,) = json.loads((tmp_path / "v2" / "run.json").read_text())["engines"]
    resolved = {"runner": "v2", "device": "cpu", "dtype": "float32", "profile": "basic", "max_num_seqs": "16"}
    assert engine | resolved == engine
