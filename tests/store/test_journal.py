"""The journal survives every cut."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.store import journal
from tts_batch.store.index import JournalIndex
from tts_batch.store.journal import (
    Outcome,
    SegmentWriter,
    list_segments,
    mend,
    next_run,
    next_start,
    read_heads,
    read_lines,
    read_outcomes,
    segment_path,
    segments_of,
)

outcomes = st.builds(
    Outcome,
    id=st.text(st.characters(), max_size=20),
    fingerprint=st.text("0123456789abcdef", min_size=4, max_size=8),
    input_digest=st.just("0"),
    status=st.sampled_from(["ok", "failed", "pending"]),
    audio=st.none() | st.sampled_from(["ab/a.b.wav", "00/x.flac"]),
    reason=st.none(),
    message=st.none() | st.text(st.characters(), max_size=30),
    audio_bytes=st.integers(0, 2**40),
    codes_bytes=st.integers(0, 2**31),
    duration_s=st.none() | st.floats(0, 1e6),
    seed=st.integers(0, 2**63 - 1),
    attempt_seeds=st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple),
)


@settings(deadline=None)
@given(outcomes)
def test_a_line_reads_back_whole(outcome: Outcome) -> None:
    line = outcome.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert Outcome.from_line(line) == outcome


@settings(deadline=None)
@given(st.lists(outcomes, max_size=4))
def test_heads_say_the_same_as_whole_lines(written: list[Outcome]) -> None:
    with TemporaryDirectory() as folder:
        path = segment_path(Path(folder), "w0", 1, 1)
        writer = SegmentWriter(path)
        writer.append(written)
        writer.close()
        path.write_bytes(path.read_bytes() + b'{"id":"torn","finger')
        offsets = [offset for offset, _ in read_lines(path)]
        assert list(read_heads(path)) == [
            (
                offset,
                outcome.id,
                outcome.fingerprint,
                outcome.input_digest,
                outcome.status,
                outcome.audio_bytes,
                outcome.codes_bytes,
                outcome.duration_s or 0.0,
                Path(outcome.audio).suffix if outcome.audio else "",
            )
            for offset, outcome in zip(offsets, written, strict=True)
        ]


@settings(max_examples=60, deadline=None)
@given(st.lists(outcomes, min_size=1, max_size=6), st.data())
def test_a_cut_anywhere_loses_the_torn_line_alone(written: list[Outcome], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        journal = Path(folder)
        path = segment_path(journal, "w0", 1, 1)
        writer = SegmentWriter(path)
        writer.append(written)
        writer.close()
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        left = whole[:cut].count(b"\n")
        assert list(read_outcomes(path)) == written[:left]
        assert mend(journal) == (not whole[:cut].endswith(b"\n") and cut > 0)
        assert mend(journal) == 0
        assert list(read_outcomes(path)) == written[:left]


def test_a_reopened_row_is_pending_and_keeps_the_seeds_that_were_tried() -> None:
    failed = Outcome(
        "a",
        "f",
        "i",
        "failed",
        reason="stalled",
        message="slow",
        attempts=2,
        seed=9,
        attempt_seeds=(8, 9),
        failed_attempts=({"attempt": 1},),
        model="tiny",
    )
    assert failed.reopened() == Outcome(
        "a",
        "f",
        "i",
        "pending",
        reason="stalled",
        attempts=2,
        seed=9,
        attempt_seeds=(8, 9),
        failed_attempts=({"attempt": 1},),
    )


def test_damage_in_the_middle_loses_the_damaged_line_alone(tmp_path: Path) -> None:
    path = segment_path(tmp_path, "w0", 1, 1)
    writer = SegmentWriter(path)
    made = [Outcome(name, "f", "i", "ok") for name in "abc"]
    writer.append(made)
    writer.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0" * 40 + b"\n" + lines[2])
    assert list(read_outcomes(path)) == [made[0], made[2]]


def test_a_damaged_head_is_left_out(tmp_path: Path) -> None:
    path = segment_path(tmp_path, "w0", 1, 1)
    writer = SegmentWriter(path)
    writer.append(Outcome(name, "f", "i", "ok", duration_s=1.5) for name in ("first", "second", "third"))
    writer.close()
    whole = path.read_bytes()
    for damaged in (whole.replace(b"second", b"sec\xffnd"), whole.replace(b"second", b"sec\\xnd")):
        path.write_bytes(damaged)
        assert [head[1] for head in read_heads(path)] == ["first", "third"]
    path.write_bytes(whole.replace(b"1.5", b"1.+", 1))
    assert [head[1] for head in read_heads(path)] == ["second", "third"]


def test_a_segment_s_name_is_durable_up_to_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(journal, "sync_folder", synced.append)
    SegmentWriter(segment_path(tmp_path / "journal", "w0", 1, 1)).close()
    assert synced == [tmp_path / "journal" / "w0", tmp_path / "journal", tmp_path]


def test_segments_are_in_the_order_of_time(tmp_path: Path) -> None:
    for worker, run, start in [("w1", 2, 1), ("w0", 10, 1), ("w0", 2, 2), ("w9", 1, 1)]:
        SegmentWriter(segment_path(tmp_path, worker, run, start)).close()
    named = [f"{path.parent.name}/{path.stem}" for path in list_segments(tmp_path)]
    assert named == ["w9/00001-001", "w1/00002-001", "w0/00002-002", "w0/00010-001"]
    assert next_run(tmp_path) == 11


def test_segments_of_clip_processes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    written = [
        segment_path(tmp_path, "w0", 1, 1),
        segment_path(tmp_path, "w0", 1, 2, 1),
        segment_path(tmp_path, "w1", 1, 2, 1),
        segment_path(tmp_path, "w0", 1, 2, 2),
        segment_path(tmp_path, "w0", 1, 2, 10),
        segment_path(tmp_path, "w10", 1, 11, 0),
        segment_path(tmp_path, "w0", 100_000, 1, 0),
        segment_path(tmp_path, "w1", 100_000, 1),
    ]
    for path in reversed(written):
        SegmentWriter(path).close()
    (tmp_path / "w0" / "notes.jsonl").touch()  # not a segment
    assert [path.name for path in written[:2]] == ["00001-001.jsonl", "00001-002-1.jsonl"]
    assert list_segments(tmp_path) == [*written[:6], written[7], written[6]]
    assert segments_of(tmp_path, "w0", 1, 2) == [written[1], written[3], written[4]]
    assert segments_of(tmp_path, "w1", 1, 1) == []
    assert next_run(tmp_path) == 100_001
    assert [next_start(tmp_path, worker, 1) for worker in ("w0", "w1", "w2", "w10")] == [3, 3, 1, 12]
    assert next_start(tmp_path, "w0", 2) == 1


def test_the_segments_of_clip_processes_are_mended_and_the_greater_number_counts(tmp_path: Path) -> None:
    for clip, message in ((2, "later"), (1, "earlier")):
        writer = SegmentWriter(segment_path(tmp_path / "journal", "w0", 1, 1, clip))
        writer.append([Outcome("a", "f", "i", "failed", message=message)])
        writer.close()
    torn = segment_path(tmp_path / "journal", "w0", 1, 1, 2)
    torn.write_bytes(torn.read_bytes() + b'{"id":"torn')
    assert mend(tmp_path / "journal") == 1
    assert [outcome.message for outcome in read_outcomes(torn)] == ["later"]
    last = JournalIndex(tmp_path).last_line("a")
    assert last is not None
    assert last.message == "later"


def test_a_segment_has_one_writer(tmp_path: Path) -> None:
    path = segment_path(tmp_path, "w0", 1, 1)
    SegmentWriter(path).close()
    with pytest.raises(FileExistsError):
        SegmentWriter(path)
