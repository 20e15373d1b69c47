"""The pieces of a split text: their request ids, their results joined to one clip, and how that is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tts_batch.engine.request import SpeechResult
from tts_batch.ipc.messages import CheckLimits
from tts_batch.records import Failure
from tts_batch.worker.checks import Examined, find_bad_sound, find_fault
from tts_batch.worker.sound import Audio, measure

_THE_WORST = ("flatness", "zero_crossings", "ref_correlation")


def piece_id(row_id: str, number: int) -> str:
    """Return the request id of a row's piece, counted from 0. No row has it: ids hold no control characters."""
    return f"{row_id}\x1f{number + 1}"


def of_piece(failure: Failure, number: int, count: int) -> Failure:
    """Return `failure` as that of a piece, counted from 0, among `count`."""
    return replace(failure, message=f"Piece {number + 1} of {count}: {failure.message}")


def join(results: Sequence[SpeechResult], pause_s: float) -> SpeechResult:
    """Return one result for good ones, in order: audio with a pause between each two, frames and codes without.

    Pieces of different sample rates do not join: the result is an "error" then.
    """
    first = results[0]
    rates_hz = sorted({result.sample_rate for result in results})
    if len(rates_hz) > 1:
        error = f"Its pieces have different sample rates: {', '.join(map(str, rates_hz))} Hz."
        return replace(first, audio=None, finish_reason="error", reason="engine_error", error=error)
    pause = np.zeros(round(pause_s * first.sample_rate), np.float32)
    codes = [result.codes for result in results if result.codes is not None]
    return replace(
        first,
        audio=np.concatenate([part for result in results for part in (pause, _audio(result))][1:]),
        codes=np.concatenate(codes) if len(codes) == len(results) else None,
        num_frames=sum(result.num_frames for result in results),
        eos=all(result.eos for result in results),
    )


def examine_joined(
    joined: SpeechResult,
    results: Sequence[SpeechResult],
    figures: Sequence[Mapping[str, float]],
    max_frames: int,
    expected_s: float,
    limits: CheckLimits,
) -> Examined:
    """Judge a clip joined of `results` that have passed with these `figures`. The pauses between them do not count."""
    failure = find_fault(joined, max_frames, limits.silent_peak_dbfs)
    if joined.audio is None:
        return Examined(failure)
    speech_s = sum(_audio(result).size for result in results) / joined.sample_rate
    checks = _combine(figures) | {"length_ratio": round(speech_s / expected_s, 3)}
    return Examined(failure or find_bad_sound(checks, speech_s, expected_s, limits), measure(joined.audio), checks)


def _combine(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    first, last = figures[0], figures[-1]
    joints = [one["tail_silence_s"] + other["head_silence_s"] for one, other in pairwise(figures)]
    checks = {
        "head_silence_s": first["head_silence_s"],
        "inner_silence_s": max(*joints, *(piece["inner_silence_s"] for piece in figures)),
        "tail_silence_s": last["tail_silence_s"],
    }
    checks |= {name: max(piece[name] for piece in figures) for name in _THE_WORST if name in first}
    if "trimmed_head_s" in first:
        within = sum(one["trimmed_tail_s"] + other["trimmed_head_s"] for one, other in pairwise(figures))
        checks |= {"trimmed_head_s": first["trimmed_head_s"], "trimmed_tail_s": last["trimmed_tail_s"]}
        checks |= {"trimmed_inner_s": within}
    return {name: round(figure, 3) for name, figure in checks.items()}


def describe_pieces(
    parts: Sequence[tuple[str, int]], results: Sequence[SpeechResult], pause_s: float
) -> list[dict[str, Any]]:
    """Return what the manifest keeps of each piece: where in the clip it begins, its length, its seed, its text.

    `parts`: text and seed of each.
    """
    described, start = [], 0
    for (text, seed), result in zip(parts, results, strict=True):
        samples, rate_hz = _audio(result).size, result.sample_rate
        place = {"start_s": round(start / rate_hz, 4), "duration_s": round(samples / rate_hz, 4)}
        described.append({**place, "num_frames": int(result.num_frames), "seed": seed, "text": text})
        start += samples + round(pause_s * rate_hz)
    return described


def _audio(result: SpeechResult) -> Audio:
    assert result.audio is not None, "it has passed its checks"
    return result.audio
