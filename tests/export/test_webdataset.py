"""B51, B52, B67: keys that nothing splits, files of a sample side by side, shards that a restart leaves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.export.support import make_run, ok_rows, stamps, tree
from tests.run.support import ROOT, make_rows, wait_until
from tts_batch.errors import CannotContinueError
from tts_batch.export.clips import FinishedClip
from tts_batch.export.job import export_run
from tts_batch.export.target import ExportOptions

SMALL = ExportOptions(shard_mb=0.15)


def samples(out: Path) -> list[dict[str, Any]]:
    """Every sample as the webdataset package reads it, the audio as the hash of its bytes.

    A program of its own: the package leaves files open.
    """
    program = (
        "import hashlib, json, sys, webdataset\n"
        "for sample in webdataset.WebDataset(sys.argv[1:], shardshuffle=False).decode():\n"
        "    sample['wav'] = hashlib.sha256(sample['wav']).hexdigest()\n"
        "    print(json.dumps({name: sample[name] for name in ('__key__', 'wav', 'json')}))"
    )
    urls = sorted(out.glob("shard-*.tar"))
    done = subprocess.run([sys.executable, "-c", program, *urls], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def members(out: Path) -> list[str]:
    names = []
    for path in sorted(out.glob("shard-*.tar")):
        with tarfile.open(path) as tar:
            names += tar.getnames()
    return names


def test_webdataset_reads_every_clip_in_order(finished: Path, tmp_path: Path) -> None:
    export_run(finished, "webdataset", tmp_path / "out", SMALL)
    rows = ok_rows(finished)
    read = samples(tmp_path / "out")
    assert [sample["json"]["id"] for sample in read] == [row["id"] for row in rows]
    for sample, row in zip(read, rows, strict=True):
        assert sample["wav"] == sha256((finished / row["audio"]).read_bytes()).hexdigest()
        assert sample["json"]["text"] == row["text"]
        assert (sample["json"]["note"], sample["json"]["day"]) == (row["note"], row["day"])


def test_b51_no_id_splits_a_key(finished: Path, tmp_path: Path) -> None:
    export_run(finished, "webdataset", tmp_path / "out", SMALL)
    keys = [name.partition(".")[0] for name in members(tmp_path / "out")]
    assert keys[::2] == [f"{number:09d}" for number in range(len(ok_rows(finished)))]
    assert {"a.b.c", "../x/y"} <= {sample["json"]["id"] for sample in samples(tmp_path / "out")}


def test_b52_the_files_of_a_sample_lie_together(finished: Path, tmp_path: Path) -> None:
    export_run(finished, "webdataset", tmp_path / "out", SMALL)
    names = members(tmp_path / "out")
    for audio, about in zip(names[::2], names[1::2], strict=True):
        assert (audio, about) == (audio.removesuffix(".wav") + ".wav", audio.removesuffix(".wav") + ".json")


@pytest.mark.usefixtures("torchcodec")
@pytest.mark.parametrize("how", ["by its path", "as a webdataset"])
def test_datasets_loads_it_too(tmp_path: Path, how: str) -> None:
    """Also where a column is empty in all of the first samples."""
    rows = make_rows(12)
    rows[11] |= {"instruct": "Slowly.", "note": "late", "score": 0.5}
    run = make_run(tmp_path, rows)
    out = tmp_path / "wds"
    export_run(run, "webdataset", out, SMALL)
    if how == "as a webdataset":
        found = datasets.load_dataset("webdataset", data_dir=str(out), split="train", streaming=True)
        assert [sample["json"]["id"] for sample in found.cast_column("wav", datasets.Audio(decode=False))] == [
            row["id"] for row in rows
        ]
        return
    loaded = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    assert loaded["train"].features["wav"] == datasets.Audio()
    found = list(loaded["train"].cast_column("wav", datasets.Audio(decode=False)))
    assert [sample["json"]["id"] for sample in found] == [row["id"] for row in rows]
    assert [found[11]["json"][name] for name in ("instruct", "note", "score")] == ["Slowly.", "late", 0.5]


def test_the_list_of_shards_counts_them(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_run(finished, "webdataset", out, SMALL)
    listed = json.loads((out / "dataset_info.json").read_bytes())
    assert [shard["file"] for shard in listed["shards"]] == sorted(path.name for path in out.glob("*.tar"))
    assert [shard["file"] for shard in listed["shards"]] == [f"shard-{n:06d}.tar" for n in range(len(listed["shards"]))]
    for shard in listed["shards"]:
        with tarfile.open(out / shard["file"]) as tar:
            assert len(tar.getnames()) == 2 * shard["samples"]
        assert (out / shard["file"]).stat().st_size == shard["bytes"]
    assert listed["samples"] == sum(shard["samples"] for shard in listed["shards"]) == len(ok_rows(finished))


def test_b67_a_restart_leaves_finished_shards_alone(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops within the third of five shards or more; the same export goes on."""
    whole, out = tmp_path / "whole" / "wds", tmp_path / "out" / "wds"
    export_run(finished, "webdataset", whole, SMALL)
    counts = [shard["samples"] for shard in json.loads((whole / "dataset_info.json").read_bytes())["shards"]]
    assert len(counts) >= 5
    read = FinishedClip.read

    def stop(clip: FinishedClip) -> bytes:
        if clip.position == sum(counts[:3]) - 1:
            raise KeyboardInterrupt
        return read(clip)

    monkeypatch.setattr(FinishedClip, "read", stop)
    with pytest.raises(KeyboardInterrupt):
        export_run(finished, "webdataset", out, SMALL)
    monkeypatch.undo()
    before = stamps(out)
    assert sorted(name for name in before if not name.startswith(".")) == ["shard-000000.tar", "shard-000001.tar"]
    export_run(finished, "webdataset", out, SMALL)
    after = stamps(out)
    assert all(after[name] == before[name] for name in ("shard-000000.tar", "shard-000001.tar"))
    assert tree(out) == tree(whole)


def test_killed_again_and_again_it_ends_as_if_never(tmp_path: Path) -> None:
    """Real kills while shards are written; no half file ever has a final name."""
    run = make_run(tmp_path, 60)
    export_run(run, "webdataset", tmp_path / "whole" / "wds", SMALL)
    wanted = tree(tmp_path / "whole" / "wds")
    out = tmp_path / "killed" / "wds"
    program = (  # each clip takes a moment, so that there is a moment to kill it
        "import sys, time; from pathlib import Path; from tts_batch.export.clips import FinishedClip\n"
        "from tts_batch.export.job import export_run; from tts_batch.export.target import ExportOptions\n"
        "read = FinishedClip.read\n"
        "def slow(clip): time.sleep(0.05); return read(clip)\n"
        "FinishedClip.read = slow\n"
        "export_run(Path(sys.argv[1]), 'webdataset', Path(sys.argv[2]), ExportOptions(shard_mb=0.15))"
    )
    for number in (1, 4):
        process = subprocess.Popen([sys.executable, "-c", program, run, out], cwd=ROOT)
        try:
            wait_until((out / f"shard-{number:06d}.tar").exists, timeout_s=60)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        there = {name: digest for name, digest in tree(out).items() if name.endswith(".tar")}
        assert there.items() <= wanted.items()
        assert not (out / "dataset_info.json").exists()
    export_run(run, "webdataset", out, SMALL)
    assert tree(out) == wanted


def test_a_clip_that_changes_meanwhile_ends_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = run / ok_rows(run)[-1]["audio"]
    read = FinishedClip.read

    def change(clip: FinishedClip) -> bytes:
        last.write_bytes(b"another")
        return read(clip)

    monkeypatch.setattr(FinishedClip, "read", change)
    with pytest.raises(CannotContinueError, match="was changed during the export"):
        export_run(run, "webdataset", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar*"))
