"""Which clips are exported: those that the manifest calls ok and that are what the journal says they are."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.export.support import make_run, ok_rows
from tests.run.support import make_rows
from tts_batch.errors import UsageError
from tts_batch.export.clips import FinishedClips, map_ahead
from tts_batch.run.existing_run import finish_run
from tts_batch.store.clips import clip_path
from tts_batch.store.journal import list_segments
from tts_batch.store.lock import RunLock
from tts_batch.store.schema import SCHEMA


def test_ok_rows_in_input_order(finished: Path) -> None:
    clips = FinishedClips(finished)
    rows = ok_rows(finished)
    assert (clips.num_rows, len(clips), clips.left_out) == (20, 18, {"empty_text": 1, "silent_output": 1})
    assert clips.audio_s == pytest.approx(sum(row["duration_s"] for row in rows))
    found = list(clips)
    assert [clip.position for clip in found] == list(range(18))
    assert [clip.row["id"] for clip in found] == [row["id"] for row in rows]
    assert [clip.read() for clip in found] == [(finished / row["audio"]).read_bytes() for row in rows]
    assert clips.sizes.tolist() == [clip.num_bytes for clip in found]


def test_what_is_gone_or_another_is_left_out(run: Path) -> None:
    rows = ok_rows(run)
    (run / rows[0]["audio"]).unlink()
    (run / rows[1]["audio"]).write_bytes((run / rows[1]["audio"]).read_bytes()[:-2])
    clips = FinishedClips(run)
    assert (len(clips), clips.left_out["missing"], clips.left_out["changed"]) == (16, 1, 1)
    assert clips.remarks == []


@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("audio", ["../victim.wav", "{victim}", "ab/../../victim.wav", "run.json", "", None, "other"])
def test_a_manifest_names_no_file_but_the_rows_clip(run: Path, audio: str | None, has_journal: bool) -> None:
    rows = ok_rows(run)
    victim = run.parent / "victim.wav"
    shutil.copy(run / rows[0]["audio"], victim)  # of the right size
    if not has_journal:
        shutil.rmtree(run / "journal")
    named = rows[1]["audio"] if audio == "other" else audio and audio.format(victim=victim)
    table = pq.read_table(run / "manifest.parquet")
    place = table.schema.get_field_index("audio")
    column = [named if cell == rows[0]["audio"] else cell for cell in table["audio"].to_pylist()]
    changed = table.set_column(place, table.schema.field(place), pa.array(column, table.schema.field(place).type))
    pq.write_table(changed, run / "manifest.parquet")
    clips = FinishedClips(run)
    assert (len(clips), clips.left_out["changed"]) == (17, 1)
    assert rows[0]["id"] not in [clip.row["id"] for clip in clips]


def test_a_clip_that_is_a_link_is_left_out(run: Path) -> None:
    clip = run / ok_rows(run)[0]["audio"]
    clip.rename(run.parent / "victim.wav")
    clip.symlink_to(run.parent / "victim.wav")
    assert FinishedClips(run).left_out["changed"] == 1


def test_a_clip_made_anew_since_the_manifest_is_left_out(tmp_path: Path) -> None:
    """A text was changed and the run that made it again was killed: the old text must not meet the new sound."""
    rows = make_rows(4)
    run = make_run(tmp_path, rows)
    manifest = (run / "manifest.parquet").read_bytes()
    rows[1]["text"] = "Sentence number 1 of the fable."  # of the same length, so that the clip is as long
    make_run(tmp_path, rows)
    (run / "manifest.parquet").write_bytes(manifest)
    told = (run / "run.json").read_text().replace('"state": "finished"', '"state": "running"')
    (run / "run.json").write_text(told)
    clips = FinishedClips(run)
    assert [clip.row["id"] for clip in clips] == ["row-0", "row-2", "row-3"]
    assert clips.left_out == {"changed": 1}
    (remark,) = clips.remarks
    assert f"tts-batch finish {run}" in remark


def test_rows_that_are_pending_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path, 6)
    (segment,) = list_segments(run / "journal")
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:4]))
    finish_run(run)
    clips = FinishedClips(run)
    assert (len(clips), clips.left_out) == (4, {"pending": 2})


def test_a_folder_without_its_journal_is_taken_at_its_word(run: Path) -> None:
    shutil.rmtree(run / "journal")
    assert len(FinishedClips(run)) == 18


def test_what_is_no_finished_run_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a run folder"):
        FinishedClips(tmp_path)
    with RunLock(run), pytest.raises(UsageError, match="A run works in"):
        FinishedClips(run)
    (run / "manifest.parquet").unlink()
    with pytest.raises(UsageError, match="tts-batch finish"):
        FinishedClips(run)


def test_the_digest_changes_with_what_is_exported(run: Path) -> None:
    before = FinishedClips(run).digest
    assert FinishedClips(run).digest == before
    (run / ok_rows(run)[0]["audio"]).unlink()
    assert FinishedClips(run).digest != before


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    assert _peak(tmp_path / "large", 8_000) < _peak(tmp_path / "small", 4_000) + 1_000_000


def _peak(run: Path, rows: int) -> int:
    """The most bytes of Python objects while a manifest of so many rows, each with a clip, is gone through."""
    run.mkdir()
    (run / "run.json").write_text('{"state": "finished"}')
    values = {"status": "ok", "duration_s": 1.0, "sample_rate": 24_000, "model": "m"}
    names = {f"row-{number}": clip_path(f"row-{number}") for number in range(rows)}
    for name in names.values():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(b"sound")
    texts = ({**values, "id": row_id, "audio": name, "text": f"{row_id}. " * 10} for row_id, name in names.items())
    pq.write_table(pa.Table.from_pylist(list(texts), SCHEMA), run / "manifest.parquet")
    tracemalloc.start()
    clips = FinishedClips(run)
    assert sum(clip.num_bytes for clip, _ in map_ahead(lambda clip: clip.position, clips)) == 5 * rows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
