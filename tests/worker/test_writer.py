"""Clips reach the disk before their journal lines, in groups, and a full disk leaves nothing half-written."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tts_batch.store.clip_sink import LocalClipSink
from tts_batch.store.clips import clip_path
from tts_batch.store.journal import Outcome, read_outcomes, segment_path
from tts_batch.worker import clip_process as writer_module
from tts_batch.worker.clip_process import ClipWriter, DiskFullError


class Recorder:
    """Keeps what the writer reports. `commit` is called before a group counts as reported."""

    def __init__(self, commit: Callable[[], None] = lambda: None) -> None:
        self.groups: list[list[Outcome]] = []
        self.errors: list[Exception] = []
        self.has_failed = threading.Event()
        self._commit = commit

    def committed(self, outcomes: list[Outcome]) -> None:
        self._commit()
        self.groups.append(outcomes)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.has_failed.set()


@pytest.fixture(autouse=True)
def _one_file_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalClipSink, "threads", 1)


def open_writer(out: Path, commit: Callable[[], None] = lambda: None) -> tuple[ClipWriter, Path, Recorder]:
    recorder = Recorder(commit)
    segment = segment_path(out / "journal", "w0", 1, 1, 1)
    return ClipWriter(out, segment, recorder.committed, recorder.failed), segment, recorder


def staged_files(segment: Path) -> list[Path]:
    return [path for path in segment.parent.glob("tmp/*/*") if path.is_file()]


def make_clip(row_id: str) -> Outcome:
    return Outcome(row_id, "f", "i", "ok", audio_bytes=3, audio=clip_path(row_id))


def put_clip(writer: ClipWriter, row_id: str) -> None:
    writer.put(make_clip(row_id), {clip_path(row_id): b"wav"})


def test_a_committed_row_is_on_the_disk(tmp_path: Path) -> None:
    writer, segment, recorder = open_writer(tmp_path)
    writer.put(make_clip("a"), {clip_path("a"): b"wav", clip_path("a", ".npy"): b"codes"})
    writer.put(Outcome("b", "f", "i", "failed", reason="empty_audio"), {})
    writer.close()
    one, two = read_outcomes(segment)
    assert (one.audio_bytes, two.audio, two.audio_bytes) == (3, None, 0)
    assert (tmp_path / clip_path("a")).read_bytes() == b"wav"
    assert (tmp_path / clip_path("a", ".npy")).read_bytes() == b"codes"
    assert recorder.groups == [[one, two]]
    assert not staged_files(segment)


def test_a_row_waits_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalClipSink, "group_s", 0.1)
    writer, _, recorder = open_writer(tmp_path)
    put_clip(writer, "a")
    for _ in range(100):
        if recorder.groups:
            break
        threading.Event().wait(0.05)
    assert len(recorder.groups) == 1
    writer.close()


def test_a_row_need_not_wait_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalClipSink, "group_s", 600.0)
    is_committed = threading.Event()
    writer, _, recorder = open_writer(tmp_path, is_committed.set)
    put_clip(writer, "a")
    writer.commit_now()
    assert is_committed.wait(10)
    writer.close()
    assert [[outcome.id for outcome in group] for group in recorder.groups] == [["a"]]


def test_files_of_a_row_that_has_not_ended_are_written_without_a_line(tmp_path: Path) -> None:
    writer, segment, recorder = open_writer(tmp_path)
    writer.put_files({"quarantine/ab/a.1.wav": b"wav"})
    writer.put_files({})
    writer.close()
    assert (tmp_path / "quarantine" / "ab" / "a.1.wav").read_bytes() == b"wav"
    assert (segment.read_bytes(), recorder.groups) == (b"", [])


def test_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_ROWS", 3)
    writer, _, recorder = open_writer(tmp_path)
    for number in range(7):
        writer.put(Outcome(f"r{number}", "f", "i", "failed"), {})
    writer.close()
    assert [len(group) for group in recorder.groups] == [3, 3, 1]


def test_files_are_written_while_the_group_before_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_ROWS", 2)
    may_go_on = threading.Event()

    def wait() -> None:
        assert may_go_on.wait(30)

    writer, segment, recorder = open_writer(tmp_path, wait)
    for row_id in "abcd":
        put_clip(writer, row_id)
    for _ in range(600):
        if len(staged_files(segment)) == 2:  # of c and d, while a and b are being committed
            break
        threading.Event().wait(0.05)
    assert recorder.groups == []
    assert len(staged_files(segment)) == 2
    assert [outcome.id for outcome in read_outcomes(segment)] == ["a", "b"]
    may_go_on.set()
    writer.close()
    assert [[outcome.id for outcome in group] for group in recorder.groups] == [["a", "b"], ["c", "d"]]
    assert [outcome.id for outcome in read_outcomes(segment)] == ["a", "b", "c", "d"]


def test_nothing_is_committed_behind_a_group_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_ROWS", 1)

    def fail() -> None:
        raise RuntimeError("the worker is gone")

    writer, segment, recorder = open_writer(tmp_path, fail)
    for row_id in "abc":
        put_clip(writer, row_id)
    writer.close()
    assert [str(error) for error in recorder.errors] == ["the worker is gone"]
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
    monkeypatch.setattr(LocalClipSink, "group_s", 0.05)
    writer, segment, recorder = open_writer(tmp_path)
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC, full))
    put_clip(writer, "a")
    put_clip(writer, "b")
    assert recorder.has_failed.wait(10)
    assert [type(error) for error in recorder.errors] == [DiskFullError]
    assert [outcome.id for outcome in read_outcomes(segment)] == kept
    assert [outcome.id for group in recorder.groups for outcome in group] == kept
    assert segment.read_bytes().endswith(b"\n") == bool(kept)  # no torn line
    assert not staged_files(segment) or not kept


def test_a_name_that_is_taken_by_a_folder_fails_one_row(tmp_path: Path) -> None:
    (tmp_path / clip_path("a")).mkdir(parents=True)
    writer, segment, _ = open_writer(tmp_path)
    put_clip(writer, "a")
    put_clip(writer, "b")
    writer.close()
    assert [outcome.reason for outcome in read_outcomes(segment)] == ["write_failed", None]
