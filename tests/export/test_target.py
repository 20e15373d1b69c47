"""The folder: nothing of others' is touched, nothing is half written, and the same export goes on."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.export.support import ok_rows, stamps, tree
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.export import target as target_module
from tts_batch.export.clips import FinishedClips
from tts_batch.export.job import FORMATS, export_run
from tts_batch.export.target import STATE, ExportOptions, Target
from tts_batch.store.lock import RunLock

EVERY = pytest.mark.parametrize("name", FORMATS)


@EVERY
def test_the_same_export_again_changes_nothing(finished: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    first = export_run(finished, name, out)
    files, before = tree(out), stamps(out)
    assert export_run(finished, name, out) == first
    assert tree(out) == files
    after = stamps(out)
    clips = [path for path in files if path.endswith((".wav", ".tar")) or path.startswith("data/")]
    assert all(after[path] == before[path] for path in clips if path != "ref.wav")
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp") or "lock" in path.name]


@EVERY
def test_an_export_that_broke_off_goes_on(
    finished: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_run(finished, name, tmp_path / "whole" / "out")
    out = tmp_path / "broken" / "out"
    rename, calls = Path.rename, iter(range(1_000))

    def stop(self: Path, to: Path) -> Path:
        if next(calls) == 8 or ".parquet" in self.name or "shard" in self.name:
            raise KeyboardInterrupt
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        export_run(finished, name, out)
    monkeypatch.undo()
    assert json.loads((out / STATE).read_bytes())["complete"] is False
    assert not {"metadata.csv", "manifest.jsonl", "train_raw.jsonl", "README.md"} & set(tree(out))
    export_run(finished, name, out)
    assert tree(out) == tree(tmp_path / "whole" / "out")
    assert json.loads((out / STATE).read_bytes())["complete"] is True


def test_a_full_disk_is_5_and_leaves_nothing_half(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if "shard" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotContinueError, match=r"disk of .* is full"):
        export_run(finished, "webdataset", out)
    assert list(tree(out)) == [STATE]


def test_a_folder_with_other_files_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"no export wrote \(thesis\.txt"):
            export_run(finished, "hf", tmp_path / "out", overwrite=overwrite)
    assert list(tree(tmp_path / "out")) == ["thesis.txt"]


def test_a_clone_of_a_repository_is_as_good_as_empty(finished: Path, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitattributes").write_text("*.parquet filter=lfs\n")
    export_run(finished, "hf", tmp_path)
    export_run(finished, "audiofolder", tmp_path, overwrite=True)
    assert (tmp_path / ".git").exists() and (tmp_path / ".gitattributes").exists()


@pytest.mark.parametrize("other", ["format", "clips", "options"])
def test_another_export_is_refused_by_what_differs(run: Path, tmp_path: Path, other: str) -> None:
    out = tmp_path / "out"
    export_run(run, "hf", out)
    name, options = "hf", ExportOptions()
    if other == "format":
        name = "webdataset"
    elif other == "options":
        options = ExportOptions(shard_mb=0.001)
    else:
        (run / ok_rows(run)[0]["audio"]).unlink()
    with pytest.raises(UsageError, match=rf"its {other} differs.*--overwrite"):
        export_run(run, name, out, options)
    export_run(run, name, out, options, overwrite=True)
    export_run(run, name, tmp_path / "fresh" / "out", options)
    assert tree(out) == tree(tmp_path / "fresh" / "out")


@EVERY
@pytest.mark.parametrize("before", FORMATS)
def test_overwrite_leaves_nothing_of_what_was_there(finished: Path, tmp_path: Path, name: str, before: str) -> None:
    export_run(finished, before, tmp_path / "out")
    export_run(finished, name, tmp_path / "out", overwrite=True)
    export_run(finished, name, tmp_path / "fresh" / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh" / "out")


@EVERY
def test_overwrite_removes_nothing_that_no_export_wrote(finished: Path, tmp_path: Path, name: str) -> None:
    out, keep = tmp_path / "out", tmp_path / "keep"
    export_run(finished, name, out)
    keep.mkdir()
    (keep / "precious").write_text("mine")
    for theirs in ("notes.txt", "data/mine/train.parquet", "audio/0000/notes.txt", "wavs/mine/a.wav"):
        (out / theirs).parent.mkdir(parents=True, exist_ok=True)
        (out / theirs).write_text("mine")
        before = tree(out)
        with pytest.raises(UsageError, match=f"no export wrote .{theirs}, "):
            export_run(finished, "hf", out, overwrite=True)
        assert tree(out) == before
        (out / theirs).unlink()
    for link in ("data", "link"):
        if not (out / link).exists():
            (out / link).symlink_to(keep)
            with pytest.raises(UsageError, match=f"no export wrote .{link}, "):
                export_run(finished, "hf", out, overwrite=True)
            (out / link).unlink()
    export_run(finished, "hf", out, overwrite=True)
    assert tree(keep) and not (out / "wavs").exists()


def test_overwrite_removes_what_is_not_whole(finished: Path, tmp_path: Path) -> None:
    export_run(finished, "ljspeech", tmp_path)
    for half in (".metadata.csv.tmp", "wavs/.a.wav.tmp", ".others.tmp"):
        (tmp_path / half).write_bytes(b"")
    export_run(finished, "hf", tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.rglob("*.tmp")] == [".others.tmp"]


PLANTED = {
    "hf": "README.md",
    "audiofolder": "metadata.parquet",
    "webdataset": "dataset_info.json",
    "ljspeech": "metadata.csv",
    "nemo": "manifest.jsonl",
    "qwen-sft": "ref.wav",
}


@EVERY
def test_links_planted_where_files_are_begun_are_not_followed(finished: Path, tmp_path: Path, name: str) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text("mine")
    for file in (PLANTED[name], STATE):
        (out / f".{file}.tmp").symlink_to(victim)
    export_run(finished, name, out)
    assert victim.read_text() == "mine"
    assert (out / PLANTED[name]).is_file() and not (out / PLANTED[name]).is_symlink()


@pytest.mark.parametrize(("name", "folder"), [("ljspeech", "wavs"), ("hf", "data"), ("nemo", "audio")])
def test_a_folder_that_is_a_link_is_not_written_into(finished: Path, tmp_path: Path, name: str, folder: str) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    export_run(finished, name, out)
    (out / folder).rename(tmp_path / "away")
    elsewhere.mkdir()
    (out / folder).symlink_to(elsewhere)
    with pytest.raises(UsageError, match=f"{folder} is a link to another folder"):
        export_run(finished, name, out)
    assert not list(elsewhere.iterdir())


def test_a_state_that_cannot_be_read_is_no_export(finished: Path, tmp_path: Path) -> None:
    (tmp_path / STATE).write_text("{")
    export_run(finished, "hf", tmp_path)
    for damaged in ("{", "[]"):
        (tmp_path / STATE).write_text(damaged)
        with pytest.raises(UsageError, match=r"no export wrote \(README\.md"):
            export_run(finished, "hf", tmp_path, overwrite=True)


def test_a_file_is_no_folder(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in ("file", "file/out"):
        with pytest.raises(UsageError, match=r"cannot be written to"):
            export_run(finished, "hf", tmp_path / out)


@pytest.mark.parametrize("name", ["audiofolder", "ljspeech"])
def test_a_clip_that_vanishes_meanwhile_ends_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    clips = FinishedClips(run)
    next(iter(clips)).path.unlink()
    monkeypatch.setattr("tts_batch.export.job.FinishedClips", lambda _: clips)
    with pytest.raises(CannotContinueError, match="was changed during"):
        export_run(run, name, tmp_path / "out")
    assert not {"metadata.parquet", "metadata.csv"} & set(tree(tmp_path / "out"))
    assert not [path for path in tree(tmp_path / "out") if path.endswith(".tmp")]


def test_two_exports_do_not_share_a_folder(finished: Path, tmp_path: Path) -> None:
    with RunLock(tmp_path / "out"), pytest.raises(UsageError, match="Another run works in"):
        export_run(finished, "hf", tmp_path / "out")


def test_hard_links_over_disks_are_refused_with_a_word(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = next(iter(FinishedClips(finished)))
    target = Target(tmp_path, {}, ExportOptions(hard_link=True), {".wav"})

    def link(source: Path, path: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(target_module.os, "link", link)
    with pytest.raises(
        UsageError, match=r"--hard-link cannot link .*: Invalid cross-device link\. Run without it to copy"
    ):
        target.put(clip, "a")
