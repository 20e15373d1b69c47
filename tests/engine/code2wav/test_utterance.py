"""Code2Wav: official seams, exact trims, arrays of the caller's own, halves when memory is short, nothing left."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tests.engine.asking import ask
from tests.engine.scripted import prepared_row
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.decoder import ExactDecoder
from tts_batch.engine.code2wav.utterance import UtteranceCode2Wav
from tts_batch.engine.runner import EngineRow
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.speech_tokenizer import SpeechTokenizer

LONG_S = 1_000.0

Network = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def speech_tokenizer(tiny_model: Callable[[str], Qwen3TTS]) -> SpeechTokenizer:
    return tiny_model("custom_voice").speech_tokenizer


@pytest.fixture(scope="module")
def decoder(speech_tokenizer: SpeechTokenizer) -> Network:
    @torch.inference_mode()
    def decode(codes: torch.Tensor) -> torch.Tensor:
        return speech_tokenizer.decoder(codes)

    return decode


def random_codes(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 2_048, (frames, 16), generator=torch.Generator().manual_seed(seed))


def row(name: str, codes: torch.Tensor, reference: torch.Tensor | None = None) -> EngineRow:
    return prepared_row(ask(name), reference).end(codes, "stop", {})


def whole(decode: Network, max_frames: int, max_wait_s: float = 0.25) -> UtteranceCode2Wav:
    return UtteranceCode2Wav(DecodePool(ExactDecoder(decode), "cpu", PoolLimits(max_frames, max_wait_s=max_wait_s)))


def clips_of(code2wav: UtteranceCode2Wav, rows: Sequence[EngineRow]) -> dict[str, np.ndarray | None]:
    codes = {row.request_id: row.codes for row in rows}
    for row in rows:
        code2wav.submit(row)
    audio = {}
    while code2wav.busy:
        for result in code2wav.poll(drain=True):
            name = result.request_id
            assert name not in audio
            assert result.audio is None or np.array_equal(result.codes, codes[name])
            audio[name] = result.audio
    return audio


@pytest.mark.parametrize(
    ("ref_frames", "frames"),
    [(0, 0), (0, 1), (1, 1), (71, 3), (72, 3), (73, 3), (299, 2), (300, 2), (301, 2), (330, 1), (0, 301), (10, 300)],
)
def test_trims_exactly_and_cuts_at_the_official_seams(
    speech_tokenizer: SpeechTokenizer, decoder: Network, ref_frames: int, frames: int
) -> None:
    reference, codes = random_codes(ref_frames, 1), random_codes(frames, 2)
    audio = clips_of(whole(decoder, 325), [row("a", codes, reference if ref_frames else None)])["a"]
    official = speech_tokenizer.decode(torch.cat([reference, codes])).numpy()
    assert audio.dtype == np.float32
    assert audio.shape == (frames * 1_920,)
    np.testing.assert_allclose(audio, official[ref_frames * 1_920 :], atol=2e-5)


def test_rows_of_any_lengths_together_equal_each_alone(decoder: Network) -> None:
    rows = [row(f"{n}", random_codes(n, n), random_codes(r, 9) if r else None) for n, r in [(5, 0), (1, 20), (302, 3)]]
    together = clips_of(whole(decoder, 2_000), rows)
    for decoded in rows:
        ((name, alone),) = clips_of(whole(decoder, 1), [decoded]).items()
        np.testing.assert_allclose(together[name], alone, atol=2e-5)


def test_arrays_are_owned_by_the_caller(decoder: Network) -> None:
    shared = random_codes(3)
    code2wav = whole(decoder, 100)
    for name in ("first", "second"):
        code2wav.submit(row(name, shared))
    shared[:] = 0  # the runner's buffer may be taken again at once
    results = code2wav.poll(drain=True)
    for array in (results[0].audio, results[0].codes, results[1].audio, results[1].codes):
        assert array.flags.owndata
    kept = results[1].audio.copy()
    results[0].audio[:] = 9
    assert np.array_equal(results[1].audio, kept)
    assert np.array_equal(results[1].codes, random_codes(3))


def small_memory(decode: Network, max_frames: int) -> Network:
    """A decoder whose device holds only so many frames at once."""

    def decode_or_fail(codes: torch.Tensor) -> torch.Tensor:
        if codes.shape[0] * codes.shape[2] > max_frames:
            raise torch.OutOfMemoryError("scripted")
        return decode(codes)

    return decode_or_fail


def test_out_of_memory_halves_and_fails_only_what_never_fits(decoder: Network) -> None:
    rows = [row(str(i), random_codes(n, n + i)) for i, n in enumerate((40, 6, 6, 6, 6))]
    expected = clips_of(whole(decoder, 1), rows)
    audio = clips_of(whole(small_memory(decoder, 13), 10_000), rows)
    assert audio.pop("0") is None
    for name, got in audio.items():
        np.testing.assert_allclose(got, expected[name], atol=2e-5)


def test_a_row_of_several_pieces_fails_once_when_one_never_fits(decoder: Network) -> None:
    audio = clips_of(whole(small_memory(decoder, 310), 10_000), [row("a", random_codes(610))])
    assert audio == {"a": None}


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([20] * 12 + [200] * 3, [(3, 200), (12, 20)]),  # 600 + 240 frames in two batches, rather than 3,000 in one
        ([48, 52, 50, 51], [(4, 52)]),
        ([200, 150], [(2, 200)]),  # a second launch would cost more than the padding
        ([60] * 30, [(20, 60), (10, 60)]),  # as many as may be decoded at once
    ],
)
def test_a_batch_is_as_long_as_padding_is_cheaper_than_another(
    lengths: list[int], expected: list[tuple[int, int]]
) -> None:
    batches = []

    def record(codes: torch.Tensor) -> torch.Tensor:
        batches.append((codes.shape[0], codes.shape[2]))
        return torch.zeros(codes.shape[0], codes.shape[2] * 1_920)

    clips_of(
        whole(record, 1_200 if len(lengths) == 30 else 5_000),
        [row(f"{i}", random_codes(n)) for i, n in enumerate(lengths)],
    )
    assert batches == expected


def test_pieces_wait_for_others_until_the_batch_is_full_or_their_time_is_up(decoder: Network) -> None:
    batches = []

    def record(codes: torch.Tensor) -> torch.Tensor:
        batches.append(len(codes))
        return decoder(codes)

    code2wav = whole(record, 12, LONG_S)
    code2wav.submit(row("a", random_codes(4)))
    code2wav.submit(row("b", random_codes(3)))
    assert code2wav.poll(drain=False) == []
    code2wav.submit(row("c", random_codes(4)))
    assert len(code2wav.poll(drain=False)) == 3
    assert batches == [3]

    impatient = whole(record, 12, 0)
    impatient.submit(row("d", random_codes(4)))
    assert len(impatient.poll(drain=False)) == 1


def test_dropped_and_cleared_rows_leave_nothing_behind(decoder: Network) -> None:
    code2wav = whole(decoder, 1_000, LONG_S)
    for name in "abc":
        code2wav.submit(row(name, random_codes(2)))
    code2wav.submit(row("none", random_codes(0)))
    assert code2wav.drop("a")
    assert not code2wav.drop("a")
    assert code2wav.drop("none")
    assert [result.request_id for result in code2wav.poll(drain=True)] == ["b", "c"]
    code2wav.submit(row("d", random_codes(2)))
    code2wav.clear()
    assert not code2wav.busy
    assert code2wav.poll(drain=True) == []


def test_what_did_not_fit_is_let_go_of_before_less_is_tried(decoder: Network) -> None:
    failed: list[weakref.ref[torch.Tensor]] = []

    def decode(codes: torch.Tensor) -> torch.Tensor:
        assert [ref() for ref in failed] == [None] * len(failed)
        if len(codes) > 1:
            intermediate = torch.zeros(8)
            failed.append(weakref.ref(intermediate))
            raise torch.OutOfMemoryError("scripted")
        return decoder(codes)

    audio = clips_of(whole(decode, 10_000), [row(str(i), random_codes(3, i)) for i in range(4)])
    assert len(failed) == 3
    assert [clip is not None for clip in audio.values()] == [True] * 4
