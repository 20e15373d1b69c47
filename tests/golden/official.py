"""Reads the golden arrays: the official package's calls as requests, and comparison of results with its arrays."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.cases import CASES, CHECKPOINTS, GREEDY_CASES, MAX_NEW_TOKENS
from tts_batch.dataset.audio import load_reference
from tts_batch.engine.request import Reference, SamplingParams, SpeechRequest, SpeechResult
from tts_batch.records import RefAudio

GOLDEN = Path(__file__).parent
CLIPS = GOLDEN.parent / "data"
WAVE_STEP = 17  # of the official waves every 17th sample was kept, from the end
NEAR_TIE = 1e-3  # where the official package's two best scores lie closer, rounding may decide
WAVE = 5e-5
LOGITS = 1e-4

Arrays = dict[str, np.ndarray]


@cache
def read(name: str) -> Arrays:
    """The arrays of tests/golden/NAME.npz."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return dict(arrays)


def checkpoint_of(name: str) -> tuple[str, str]:
    """Kind and size of the tiny-random checkpoint that a generation was made with."""
    return CHECKPOINTS[name.split("_", maxsplit=1)[0]]


def greedy_cases(prefix: str) -> list[str]:
    """The greedy generations of one checkpoint."""
    return [name for name in GREEDY_CASES if name.split("_")[0] == prefix]


def num_rows(name: str) -> int:
    """The number of rows of a generation."""
    return len(read(name)["inputs_embeds"])


def official_arguments(name: str, row: int) -> dict[str, Any]:
    """The arguments of the official call for one row."""
    return {key: value[row] if isinstance(value, list) else value for key, value in CASES[name].items()}


def requests(name: str, *, encoded: bool = True) -> list[SpeechRequest]:
    """A generation's rows. `encoded`: references as the official package encoded them, else from their files."""
    return [_request(name, row, encoded) for row in range(num_rows(name))]


def _request(name: str, row: int, encoded: bool) -> SpeechRequest:
    arguments = official_arguments(name, row)
    sampling = {key: arguments[key] for key in SamplingParams.__dataclass_fields__ if key in arguments}
    return SpeechRequest(
        request_id=f"{name} {row}",
        text=arguments["text"],
        task=checkpoint_of(name)[0],
        seed=row,
        max_frames=MAX_NEW_TOKENS - 1,
        sampling=SamplingParams(**sampling),
        language=arguments.get("language"),
        speaker=arguments.get("speaker"),
        instruct=arguments.get("instruct"),
        reference=_reference(name, row, arguments, encoded) if "ref_audio" in arguments else None,
        x_vector_only=arguments.get("x_vector_only_mode", False),
        non_streaming=arguments.get("non_streaming_mode"),
    )


def _reference(name: str, row: int, arguments: dict[str, Any], encoded: bool) -> Reference:
    text, clip = arguments.get("ref_text"), arguments["ref_audio"]
    if not encoded:
        path = str(CLIPS / clip)
        return Reference(key=clip, load=lambda: load_reference(RefAudio(path=path, label=clip)), text=text)
    arrays = read(name)
    return Reference(
        key=f"{name} {row}",
        load=lambda: pytest.fail("what is given must not be loaded"),
        text=text,
        codes=arrays.get(f"ref_code_{row}"),
        x_vector=arrays[f"ref_spk_embedding_{row}"],
    )


def assert_official(result: SpeechResult) -> None:
    """Assert that the codes and wave of a greedy row equal the official ones, up to a near tie."""
    name, row = result.request_id.split()[0], int(result.request_id.split()[1])
    arrays = read(name)
    assert result.codes is not None, result.error
    assert result.audio is not None
    ours, codes = result.codes, arrays[f"codes_{row}"]
    same = min(len(codes), len(ours))
    differs = np.flatnonzero((ours[:same] != codes[:same]).any(1))
    same = int(differs[0]) if len(differs) else same
    if same < max(len(codes), len(ours)):
        talker, predictor = arrays["talker_margin"][same, row], arrays["predictor_margin"][same : same + 1, :, row]
        assert min(talker, predictor.min(initial=1)) < NEAR_TIE, f"{result.request_id} differs from frame {same} on"
        return
    assert result.eos == (len(codes) < MAX_NEW_TOKENS - 1)
    assert result.finish_reason == ("stop" if result.eos else "length")
    assert arrays[f"wav_{row}_samples"] - len(result.audio) in (0, 1)  # the official trim may leave a sample of it
    wave = result.audio[::-WAVE_STEP]
    np.testing.assert_allclose(wave, arrays[f"wav_{row}_from_end"][: len(wave)], atol=WAVE, rtol=0)
