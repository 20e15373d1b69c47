"""Clips reach the disk before their journal lines, in groups, and a full disk leaves nothing half-written."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tts_batch.store.clips import clip_path
from tts_batch.store.journal import Outcome, read_outcomes, segment_path
from tts_batch.worker import writer as writer_module
from tts_batch.worker.writer import ClipWriter, DiskFullError


class Ears:
    """Hears what the writer tells."""

    def __init__(self) -> None:
        self.groups: list[list[Outcome]] = []
        self.error: Exception | None = None
        self.broke = threading.Event()

    def committed(self, outcomes: list[Outcome]) -> None:
        self.groups.append(outcomes)

    def broken(self, error: Exception) -> None:
        self.error = error
        self.broke.set()


@pytest.fixture(autouse=True)
def _one_file_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "FILE_THREADS", 1)


def open_writer(out: Path) -> tuple[ClipWriter, Path, Ears]:
    ears = Ears()
    segment = segment_path(out / "journal", "w0", 1, 1)
    return ClipWriter(out, segment, ears.committed, ears.broken), segment, ears


def make_clip(row_id: str) -> Outcome:
    return Outcome(row_id, "f", "i", "ok", audio_bytes=3, audio=clip_path(row_id))


def put_clip(writer: ClipWriter, row_id: str) -> None:
    writer.put(make_clip(row_id), {clip_path(row_id): b"wav"})


def test_a_committed_row_is_on_the_disk(tmp_path: Path) -> None:
    writer, segment, ears = open_writer(tmp_path)
    writer.put(make_clip("a"), {clip_path("a"): b"wav", clip_path("a", ".npy"): b"codes"})
    writer.put(Outcome("b", "f", "i", "failed", reason="empty_audio"))
    writer.close()
    one, two = read_outcomes(segment)
    assert (one.audio_bytes, two.audio, two.audio_bytes) == (3, None, 0)
    assert (tmp_path / clip_path("a")).read_bytes() == b"wav"
    assert (tmp_path / clip_path("a", ".npy")).read_bytes() == b"codes"
    assert ears.groups == [[one, two]]
    assert not list(tmp_path.glob("journal/w0/tmp/*"))


def test_a_row_waits_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_S", 0.1)
    writer, _, ears = open_writer(tmp_path)
    put_clip(writer, "a")
    for _ in range(100):
        if ears.groups:
            break
        threading.Event().wait(0.05)
    assert len(ears.groups) == 1
    writer.close()


def test_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_ROWS", 3)
    writer, _, ears = open_writer(tmp_path)
    for number in range(7):
        writer.put(Outcome(f"r{number}", "f", "i", "failed"))
    writer.close()
    assert [len(group) for group in ears.groups] == [3, 3, 1]


def test_files_are_written_while_the_group_before_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_ROWS", 2)
    writer, segment, ears = open_writer(tmp_path)
    may_go_on = threading.Event()
    committed = ears.committed

    def commit_slowly(outcomes: list[Outcome]) -> None:
        assert may_go_on.wait(30)
        committed(outcomes)

    writer._committed = commit_slowly
    for row_id in "abcd":
        put_clip(writer, row_id)
    for _ in range(600):
        if len(list(segment.parent.glob("tmp/*"))) == 2:  # of c and d, while a and b are being committed
            break
        threading.Event().wait(0.05)
    assert ears.groups == []
    assert len(list(segment.parent.glob("tmp/*"))) == 2
    assert [outcome.id for outcome in read_outcomes(segment)] == ["a", "b"]
    may_go_on.set()
    writer.close()
    assert [[outcome.id for outcome in group] for group in ears.groups] == [["a", "b"], ["c", "d"]]
    assert [outcome.id for outcome in read_outcomes(segment)] == ["a", "b", "c", "d"]


def test_nothing_is_committed_behind_a_group_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_ROWS", 1)
    writer, segment, _ = open_writer(tmp_path)
    told: list[Exception] = []

    def fail(outcomes: list[Outcome]) -> None:
        raise RuntimeError("the parent is gone")

    writer._committed, writer._broken = fail, told.append
    for row_id in "abc":
        put_clip(writer, row_id)
    writer.close()
    assert [str(error) for error in told] == ["the parent is gone"]
    assert [outcome.id for outcome in read_outcomes(segment)] == ["a"]


def fail_with(number: int, fails: Callable[[int], bool]) -> Callable[[int], None]:
    calls = iter(range(10**6))

    def fsync(descriptor: int) -> None:
        if fails(next(calls)):
            raise OSError(number, os.strerror(number))

    return fsync


def test_one_bad_write_fails_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, segment, _ = open_writer(tmp_path)
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO, lambda call: call == 0))
    put_clip(writer, "a")
    put_clip(writer, "b")
    writer.close()
    one, two = read_outcomes(segment)
    assert (one.status, one.reason, one.audio, one.audio_bytes) == ("failed", "write_failed", None, 0)
    assert two.status == "ok"


@pytest.mark.parametrize(
    ("full", "kept"),
    [
        (lambda call: call >= 0, []),  # not even the first clip
        (lambda call: call == 1, ["a"]),  # not the second, which makes room for the line of the first
        (lambda call: call == 5, []),  # not the journal, after two clips, two folders and the run folder
    ],
)
def test_a_full_disk_ends_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: Callable[[int], bool], kept: list[str]
) -> None:
    monkeypatch.setattr(writer_module, "GROUP_S", 0.05)
    writer, segment, ears = open_writer(tmp_path)
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC, full))
    put_clip(writer, "a")
    put_clip(writer, "b")
    assert ears.broke.wait(10)
    assert isinstance(ears.error, DiskFullError)
    assert [outcome.id for outcome in read_outcomes(segment)] == kept
    assert [outcome.id for group in ears.groups for outcome in group] == kept
    assert segment.read_bytes().endswith(b"\n") == bool(kept)  # no torn line
    assert not list(segment.parent.glob("tmp/*")) or not kept


def test_a_name_that_is_taken_by_a_folder_fails_one_row(tmp_path: Path) -> None:
    (tmp_path / clip_path("a")).mkdir(parents=True)
    writer, segment, _ = open_writer(tmp_path)
    put_clip(writer, "a")
    put_clip(writer, "b")
    writer.close()
    assert [outcome.reason for outcome in read_outcomes(segment)] == ["write_failed", None]
