"""verify finds everything that is not as the manifest says, finish makes the manifest true, in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.run.support import make_config, make_rows, read_manifest
from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus, UsageError
from tts_batch.run.job import read_status, run_job
from tts_batch.store.clips import clip_path
from tts_batch.store.journal import list_segments
from tts_batch.store.lock import RunLock
from tts_batch.store.verify import Problem, remove_damaged, verify_run

Fake = Callable[..., None]


def test_each_kind_of_damage_is_found(tmp_path: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_rows(8)
    rows[7]["text"] = ""
    config = make_config(tmp_path, rows, save_codes=True)
    run_job(config)
    out = config.out
    assert list(verify_run(out)) == []
    assert main(["verify", str(out)]) == ExitStatus.OK
    (out / clip_path("row-0")).unlink()
    (out / clip_path("row-1")).write_bytes(b"no sound")
    flipped = bytearray((out / clip_path("row-2")).read_bytes())
    flipped[-1] ^= 1
    (out / clip_path("row-2")).write_bytes(flipped)
    soundfile.write(out / clip_path("row-3"), np.zeros(100), 24_000)
    (out / clip_path("row-4", ".npy")).unlink()
    np.save(out / clip_path("row-5", ".npy"), np.zeros((1, 16), np.int16))
    codes = bytearray((out / clip_path("row-6", ".npy")).read_bytes())
    codes[-1] ^= 1
    (out / clip_path("row-6", ".npy")).write_bytes(codes)
    (out / "ab").mkdir(exist_ok=True)
    (out / "ab" / "stray.wav").write_bytes(b"whose?")
    found = {(finding.kind, finding.row_id) for finding in verify_run(out)}
    assert found == {
        ("missing", "row-0"),
        ("changed", "row-1"),
        ("unreadable", "row-1"),
        ("changed", "row-2"),
        ("changed", "row-3"),
        ("wrong length", "row-3"),
        ("missing", "row-4"),
        ("changed", "row-5"),
        ("wrong length", "row-5"),
        ("changed", "row-6"),
        ("orphan", None),
    }
    capsys.readouterr()
    assert main(["verify", str(out)]) == ExitStatus.SOME_FAILED
    captured = capsys.readouterr()
    assert "orphan  ab/stray.wav" in captured.out
    assert "2 missing" in captured.err
    assert main(["verify", str(out), "--remove-damaged"]) == ExitStatus.SOME_FAILED
    assert {finding.kind for finding in verify_run(out)} == {"missing", "orphan"}
    (out / "ab" / "stray.wav").unlink()
    assert run_job(config).made == 7
    assert list(verify_run(out)) == []


def test_a_clip_at_another_rate_has_a_wrong_length(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 1)
    run_job(config)
    samples, _ = soundfile.read(config.out / clip_path("row-0"))
    soundfile.write(config.out / clip_path("row-0"), samples, 16_000)
    assert [finding.kind for finding in verify_run(config.out)] == ["changed", "wrong length"]


def test_nothing_is_removed_outside_of_a_row_s_own_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine.wav"
    mine.touch()
    own = tmp_path / "out" / clip_path("a")
    own.parent.mkdir(parents=True)
    own.touch()
    for finding in (
        Problem("changed", "../mine.wav", "a", "as a manifest from elsewhere may say"),
        Problem("orphan", clip_path("a"), None, "somebody's"),
        Problem("missing", clip_path("a"), "a", "it came back"),
    ):
        remove_damaged(tmp_path / "out", finding)
    assert mine.exists() and own.exists()
    remove_damaged(tmp_path / "out", Problem("changed", clip_path("a"), "a", ""))
    assert not own.exists()


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_codes_that_are_no_codes_are_unreadable(tmp_path: Path, fake: Fake, content: bytes) -> None:
    config = make_config(tmp_path, 1, save_codes=True)
    run_job(config)
    (config.out / clip_path("row-0", ".npy")).write_bytes(content)
    assert {finding.kind for finding in verify_run(config.out)} == {"changed", "unreadable"}
    assert run_job(config).made == 1
    assert list(verify_run(config.out)) == []


def test_what_no_run_wrote_is_refused(tmp_path: Path, fake: Fake) -> None:
    with pytest.raises(UsageError, match="is not a run folder"):
        next(verify_run(tmp_path))
    assert main(["finish", str(tmp_path)]) == ExitStatus.USAGE


def test_a_run_without_a_manifest_may_be_at_work_or_is_to_be_finished(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 1)
    run_job(config)
    (config.out / "manifest.parquet").unlink()
    with RunLock(config.out), pytest.raises(UsageError, match="A run works in"):
        next(verify_run(config.out))
    with pytest.raises(UsageError, match=r"no manifest\.parquet: `tts-batch finish"):
        next(verify_run(config.out))


def test_finish_tells_the_truth_after_a_crash(tmp_path: Path, fake: Fake) -> None:
    """The journal has lost lines and its last is torn, a clip is gone, the manifest is none."""
    config = make_config(tmp_path, 6)
    run_job(config)
    (segment,) = list_segments(config.out / "journal")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:4]) + lines[4][:30])
    (config.out / clip_path("row-0")).unlink()
    (config.out / "manifest.parquet").unlink()
    assert main(["finish", str(config.out)]) == ExitStatus.STOPPED
    assert [row["status"] for row in read_manifest(config.out)].count("pending") == 3
    assert read_status(config.out)["state"] == "stopped"
    kinds = [finding.kind for finding in verify_run(config.out)]
    assert sorted(kinds) == ["orphan", "orphan", "pending", "pending", "pending"]
    assert run_job(config).made == 3
    assert list(verify_run(config.out)) == []


@pytest.mark.parametrize(
    ("name", "subtype", "lossy"),
    [
        ("wav24", "PCM_24", False),
        ("wavf32", "FLOAT", False),
        ("flac", "PCM_16", False),
        ("mp3", "MPEG_LAYER_III", True),
        ("opus", "OPUS", True),
    ],
)
def test_formats(tmp_path: Path, fake: Fake, name: Any, subtype: str, lossy: bool) -> None:
    fake(faults={"row-1": "loud"})
    config = make_config(tmp_path, 2, format=name)
    assert run_job(config).ok == 2
    for row in read_manifest(config.out):
        info = soundfile.info(config.out / row["audio"])
        assert (info.subtype, info.samplerate, info.channels) == (subtype, 24_000, 1)
        assert info.duration == pytest.approx(row["duration_s"], abs=0.2 if lossy else 0)
    loud = soundfile.read(config.out / read_manifest(config.out)[1]["audio"])[0]
    assert np.abs(loud).max() == pytest.approx(1.2 if name == "wavf32" else 1.0, abs=0.3 if lossy else 0.001)
    assert list(verify_run(config.out)) == []
    assert run_job(config).made == 0
    with pytest.raises(UsageError, match="format"):
        run_job(make_config(tmp_path, 2))


def test_a_long_clip_survives_every_format(tmp_path: Path) -> None:
    from tts_batch.store.clips import CONTAINERS, encode_clip

    audio = (0.1 * np.sin(np.arange(24_000 * 120) / 20)).astype(np.float32)
    for name, container in CONTAINERS.items():
        path = tmp_path / f"{name}{container.suffix}"
        path.write_bytes(encode_clip(audio, 24_000, name))
        assert soundfile.info(path).duration == pytest.approx(120, abs=0.2)


def test_takes(tmp_path: Path, fake: Fake) -> None:
    rows = make_rows(3)
    rows[1]["seed"] = 7
    rows[2]["text"] = ""
    config = make_config(tmp_path, rows)
    run_job(config)
    one = {row["id"]: row for row in read_manifest(config.out)}
    more = config.model_copy(update={"takes": 3})
    assert run_job(more).made == 4  # the first takes are there
    made = read_manifest(config.out)
    assert [row["id"] for row in made] == [
        *("row-0", "row-0__take2", "row-0__take3", "row-1", "row-1__take2", "row-1__take3", "row-2")
    ]
    assert [row["row_index"] for row in made] == [0, 0, 0, 1, 1, 1, 2]
    assert made[0] == one["row-0"]
    assert (made[3]["seed"], len({row["seed"] for row in made[:6]}), len({row["audio"] for row in made[:6]})) == (
        7,
        6,
        6,
    )
    assert list(verify_run(config.out)) == []
    clash = make_config(tmp_path, [*rows, {**rows[0], "id": "x__take2"}], takes=2, out=tmp_path / "clash")
    run_job(clash)
    assert read_manifest(clash.out)[-1]["reason"] == "bad_id"
