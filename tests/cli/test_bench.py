"""`tts-batch bench` from end to end on a small checkpoint, and the options that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus

SMALL = ["bench", "--model", "tiny-random", "--device", "cpu", "--rows", "4", "--references", "2"]


COLD = ["--rows", "2", "--runner", "v2", "--cache", "cold", "--concurrency", "2", "--workload", "fixed"]


@pytest.mark.parametrize(("more", "rows"), [([], 4), (COLD, 2)], ids=["warm", "cold"])
def test_a_small_benchmark(more: list[str], rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert main([*SMALL, "--json", str(path), *more]) == ExitStatus.OK
    report = json.loads(path.read_text())
    (measured,) = report["rounds"]
    assert (measured["completed"], measured["attempted"], measured["finish_reasons"]) == (rows, rows, {"length": rows})
    assert measured["audio_s"] >= rows * 12 / 12.5
    assert report["workload"]["x_vector_only"] == ("fixed" in more)
    assert measured["audio_s_per_s"] == pytest.approx(measured["audio_s"] / measured["wall_s"])
    assert report["engine"]["device"] == "cpu"
    assert (measured["playback"], measured["gpu_idle_steady"]) == (None, None)
    assert measured["rtf"] == pytest.approx(1 / measured["audio_s_per_s"])
    assert measured["counts"]["code2wav_frames"] == pytest.approx(12.5 * measured["audio_s"])
    assert f" {rows}/{rows}" in capsys.readouterr().out


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_chunks_are_played(runner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    more = ["--runner", runner, "--profile", "b2", "--chunked", "--concurrency", "2", "--rounds", "2"]
    assert main([*SMALL, "--json", str(path), *more]) == ExitStatus.OK
    report = json.loads(path.read_text())
    assert (report["engine"]["code2wav_mode"], report["engine"]["profile"]) == ("chunked", "b2")
    for measured in report["rounds"]:
        assert (measured["completed"], measured["attempted"]) == (4, 4)
        playback = measured["playback"]
        assert 0 < playback["first_audio_p50_s"] <= playback["first_audio_p99_s"] < measured["wall_s"]
        assert 0 <= playback["rows_with_underruns"] <= min(4, playback["underruns"])
        assert (playback["underrun_s"] > 0) == (playback["underruns"] > 0)
        assert measured["frames"] > 0
        assert measured["graphs"]["code2wav"]["eager"] > 0
        assert measured["device_ms_per_frame"].keys() == {"prefill", "frame_loop", "code2wav"}
    assert "first audio p50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["bench"], 2, "either --shape"),
        ([*SMALL, "--shape", "1.7b"], 2, "either --shape"),
        ([*SMALL, "--dtype", "float16"], 2, "'float16' is not one of"),
        ([*SMALL, "--concurrency", "0"], 2, "'max' nor a number from 1 on"),
        ([*SMALL, "--concurrency", "many"], 2, "'max' nor a number from 1 on"),
        (["bench", "--model", "nowhere/at-all"], 5, "nowhere/at-all"),
        ([*SMALL, "--device", "musa"], 5, "musa"),
    ],
)
def test_what_cannot_be_measured(args: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert (captured.out, "Traceback" in captured.err) == ("", False)


def test_only_base_clones(capsys: pytest.CaptureFixture[str]) -> None:
    from tts_batch.model.tiny import build_tiny

    assert main(["bench", "--model", str(build_tiny("tiny-random", "custom_voice"))]) == ExitStatus.USAGE
    assert "Base" in capsys.readouterr().err
