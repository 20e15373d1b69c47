"""The index says of every row what the last whole line says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.errors import CannotContinueError
from tts_batch.plan.rows import PlannedRow
from tts_batch.records import Row
from tts_batch.store.clips import clip_path
from tts_batch.store.index import JournalIndex, input_digest
from tts_batch.store.journal import Outcome, SegmentWriter, list_segments, segment_path

lines = st.tuples(st.sampled_from("abcdef"), st.sampled_from(["f1", "f2"]), st.sampled_from(["ok", "failed"]))


def planned(row_id: str, fingerprint: str) -> PlannedRow:
    return PlannedRow(Row(0, row_id, "table:1", text=row_id), fingerprint=fingerprint)


def outcome(row_id: str, fingerprint: str, status: str, size: int = 4) -> Outcome:
    digest = input_digest(planned(row_id, fingerprint))
    figures = {"audio_bytes": size, "duration_s": 0.5, "audio": clip_path(row_id)}
    return Outcome(row_id, fingerprint, digest, status, **figures)  # type: ignore[arg-type]


def write_segments(out: Path, segments: Sequence[Sequence[tuple[str, str, str]]]) -> None:
    for run, segment in enumerate(segments, 1):
        writer = SegmentWriter(segment_path(out / "journal", f"w{run % 2}", run, 1))
        writer.append(outcome(*line) for line in segment)
        writer.close()


def write_clip(out: Path, row_id: str, size: int = 4) -> Path:
    path = out / clip_path(row_id)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(lines, max_size=6), max_size=4))
def test_the_last_line_of_a_row_holds(segments: list[list[tuple[str, str, str]]]) -> None:
    last = {row_id: (fingerprint, status) for segment in segments for row_id, fingerprint, status in segment}
    with TemporaryDirectory() as folder:
        out = Path(folder)
        write_segments(out, segments)
        for row_id in "abcdef":
            write_clip(out, row_id)
        index = JournalIndex(out)
        assert len(index) == len(last)
        assert index.ok == sum(status == "ok" for _, status in last.values())
        assert index.audio_s == 0.5 * len(last)
        for row_id in "abcdef":
            for fingerprint in ("f1", "f2"):
                row = planned(row_id, fingerprint)
                known, status = last.get(row_id, ("", ""))
                assert index.standing(row) == (status if known == fingerprint else "todo")
                found = index.outcome(row)
                assert (found.status if found else "") == (status if known == fingerprint else "")


def test_an_ok_row_needs_its_clip_with_its_size(tmp_path: Path) -> None:
    write_segments(tmp_path, [[("a", "f", "ok"), ("b", "f", "ok"), ("c", "f", "ok"), ("d", "f", "failed")]])
    write_clip(tmp_path, "a")
    write_clip(tmp_path, "b", size=3)
    index = JournalIndex(tmp_path)
    assert [index.standing(planned(row_id, "f")) for row_id in "abcd"] == ["ok", "todo", "todo", "failed"]


def test_saved_codes_count_as_the_clip_does(tmp_path: Path) -> None:
    writer = SegmentWriter(segment_path(tmp_path / "journal", "w0", 1, 1))
    writer.append(
        replace(outcome(row_id, "f", "ok"), codes=clip_path(row_id, ".npy"), codes_bytes=9) for row_id in "abc"
    )
    writer.close()
    for row_id in "abc":
        write_clip(tmp_path, row_id)
    for row_id, size in [("a", 9), ("b", 8)]:
        (tmp_path / clip_path(row_id, ".npy")).write_bytes(b"x" * size)
    index = JournalIndex(tmp_path)
    assert [index.standing(planned(row_id, "f")) for row_id in "abc"] == ["ok", "todo", "todo"]


def test_a_line_of_before_codes_were_counted_still_holds(tmp_path: Path) -> None:
    segment = segment_path(tmp_path / "journal", "w0", 1, 1)
    segment.parent.mkdir(parents=True)
    line = outcome("a", "f", "ok").to_line()
    segment.write_bytes(line.replace(b'"codes_bytes":0,', b"").replace(b'"codes_digest":null,', b""))
    assert segment.read_bytes() != line
    write_clip(tmp_path, "a")
    index = JournalIndex(tmp_path)
    assert index.standing(planned("a", "f")) == "ok"
    assert index.last_line("a") == outcome("a", "f", "ok")


def test_a_damaged_line_counts_for_nothing(tmp_path: Path) -> None:
    write_segments(tmp_path, [[("a", "f", "ok"), ("b", "f", "ok")]])
    for row_id in "ab":
        write_clip(tmp_path, row_id)
    (segment,) = list_segments(tmp_path / "journal")
    whole = segment.read_bytes()
    at = whole.rindex(b'"attempts"')
    for damaged in (b"\0" + whole[at + 1 :], b"null}\n"):
        segment.write_bytes(whole[:at] + damaged)
        index = JournalIndex(tmp_path)
        assert [index.standing(planned(row_id, "f")) for row_id in "ab"] == ["ok", "todo"]
    segment.write_bytes(whole.replace(b".wav", b".wax"))
    assert len(JournalIndex(tmp_path)) == 0


def test_a_line_that_is_damaged_while_a_run_works_is_named(tmp_path: Path) -> None:
    write_segments(tmp_path, [[("a", "f", "ok"), ("b", "f", "ok")]])
    (segment,) = list_segments(tmp_path / "journal")
    whole = segment.read_bytes()
    index = JournalIndex(tmp_path)
    begins = whole.index(b"\n") + 1
    segment.write_bytes(whole[:begins] + b"\0" + whole[begins + 1 :])
    assert index.outcome(planned("a", "f")) is not None
    with pytest.raises(CannotContinueError, match=rf"at byte {begins} of .*jsonl is damaged: delete that line"):
        index.outcome(planned("b", "f"))


def test_a_line_reads_the_same_in_any_order_of_its_keys(tmp_path: Path) -> None:
    write_clip(tmp_path, "a")
    values = json.loads(outcome("a", "f", "ok").to_line())
    segment = segment_path(tmp_path / "journal", "w0", 1, 1)
    segment.parent.mkdir(parents=True)
    segment.write_text(json.dumps(dict(reversed(values.items()))) + "\n")
    index = JournalIndex(tmp_path)
    assert index.standing(planned("a", "f")) == "ok"
    assert index.last_line("a") == outcome("a", "f", "ok")


def test_a_mixed_folder_keeps_rows_whose_input_is_the_same(tmp_path: Path) -> None:
    write_segments(tmp_path, [[("a", "old", "ok")]])
    write_clip(tmp_path, "a")
    index = JournalIndex(tmp_path)
    same, other = planned("a", "new"), PlannedRow(Row(0, "a", "table:1", text="other words"), fingerprint="new")
    assert index.standing(same) == "todo"
    assert index.standing(same, mixed=True) == "ok"
    assert index.standing(other, mixed=True) == "todo"
    found = index.outcome(same, mixed=True)
    assert found is not None
    assert found.fingerprint == "old"


def test_only_a_known_row_has_a_clip_to_forget(tmp_path: Path) -> None:
    write_segments(tmp_path, [[("a", "f", "ok")]])
    known, unknown = write_clip(tmp_path, "a"), write_clip(tmp_path, "b")
    index = JournalIndex(tmp_path)
    index.forget_clip("a")
    index.forget_clip("b")
    assert not known.exists()
    assert unknown.exists()


def test_the_clip_of_a_manifest_row_is_that_of_its_last_line(tmp_path: Path) -> None:
    write_segments(tmp_path, [[("a", "f1", "ok"), ("b", "f1", "ok"), ("c", "f1", "failed")], [("b", "f2", "ok")]])
    index = JournalIndex(tmp_path)
    rows = [{"id": row_id, "fingerprint": "f1", "duration_s": 0.5} for row_id in "abcd"]
    assert [index.clip_bytes(row) for row in rows] == [4, None, None, None]
    assert index.clip_bytes({**rows[0], "duration_s": 0.58}) is None


def test_lines_of_any_length_in_more_segments_than_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_batch.store.index.MAX_OPEN", 2)
    monkeypatch.setattr("tts_batch.store.index.LINE_BYTES", 100)
    write_segments(tmp_path, [[(row_id, "f1", "failed"), ("z", "f1", "ok")] for row_id in "abcdef"])
    index = JournalIndex(tmp_path)
    for row_id in "fedcbazzabc":
        assert index.last_line(row_id) == outcome(row_id, "f1", "ok" if row_id == "z" else "failed")
