"""Error rates of the check for references that leak into clips, on clones of steady voices and on planted leaks.

A reference is a sentence of a speaker of `tiny`, resynthesised by linear prediction with one unchanging pitch: the
hardest voice to tell from a copy of itself. Each is cloned with `tiny` in several texts. Leaks are planted by setting
the end of the reference, changed as a model might change it, before a clone. With `--clones FILE` the clones are kept,
and found there the next time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_toeplitz
from scipy.signal import lfilter, resample

import tts_batch
from tts_batch.engine.request import SAMPLE_RATE_HZ
from tts_batch.ipc.messages import CheckLimits
from tts_batch.worker.examine import Tail

Audio = NDArray[np.float32]

SPEAKERS = ("aiden", "dylan", "eric", "ono_anna", "ryan", "serena", "sohee", "uncle_fu", "vivian")
REFERENCES = (
    "We waited at the station until half past nine.",
    "The morning light came slowly over the hills.",
    "She keeps the old letters in a wooden box.",
    "My brother sold his car and bought a boat.",
)
TEXTS = (
    "Please hold the line.", "The train is late.", "It is half past nine.", "A small boat left.", "Nobody was home.",
    "He sold his old car.", "Come back tomorrow.", "Turn left at the mill.", "The soup is too hot.", "We found a key.",
    "Light rain is likely.", "Two of them agreed.", "Read me the letter.", "The hills are green.", "I will call you.",
    "Close the window now.", "A dog barked twice.", "She bought a boat.", "Open the wooden box.", "They came by bus.",
    "This is the last one.", "What time is it?", "Bread and milk, please.", "The door was locked.", "Good night.",
    "Every seat is taken.", "My brother is here.", "Leave it on the table.",
)  # fmt: skip
FRAME = 720  # 30 ms
HOP = 240
ORDER = 26


def steady_voice(audio: Audio, pitch_hz: float, rng: np.random.Generator, jitter: float = 0.0) -> Audio:
    """Return the words of samples [samples] in a voice of one pitch: pulses and a little noise through its formants.

    `jitter`: the standard deviation of a period, by its length.
    """
    pulses = np.zeros(audio.size)
    count = round(1.2 * audio.size * pitch_hz / SAMPLE_RATE_HZ)
    periods = SAMPLE_RATE_HZ / pitch_hz * (1 + jitter * rng.standard_normal(count))
    pulses[[at for at in np.round(np.cumsum(periods)).astype(int) if at < audio.size]] = 1.0
    source = lfilter([1.0], [1.0, -0.95], pulses) + 0.02 * rng.standard_normal(audio.size)
    window, state, spoken = np.hanning(FRAME), np.zeros(ORDER), np.zeros(audio.size)
    emphasised = lfilter([1.0, -0.95], [1.0], audio)
    for start in range(0, audio.size - FRAME, HOP):
        block = emphasised[start : start + FRAME] * window
        lags = np.correlate(block, block, "full")[FRAME - 1 : FRAME + ORDER]
        if lags[0] < 1e-6:
            continue
        lags[0] *= 1.0001
        filter_ = np.concatenate([[1.0], -solve_toeplitz(lags[:ORDER], lags[1:])])
        gain = np.sqrt(max(float(filter_ @ lags), 1e-9))
        piece = slice(start + HOP, start + 2 * HOP)
        spoken[piece], state = lfilter([gain], filter_, source[piece], zi=state)
    return (0.3 * spoken / max(float(np.abs(spoken).max()), 1e-9)).astype(np.float32)


def make_clones(num_clones: int, seed: int) -> tuple[list[Audio], list[tuple[int, Audio]]]:
    """Return the references, and (number of its reference, samples) of each clone."""
    rng = np.random.default_rng(seed)
    told = [(speaker, text) for text in REFERENCES for speaker in SPEAKERS]
    rows = [
        {"id": str(number), "text": text, "speaker": speaker, "language": "english"}
        for number, (speaker, text) in enumerate(told)
    ]
    with tts_batch.Synthesizer("tiny", max_num_seqs=32) as synthesizer:
        natural = {int(clip.id): clip.audio for clip in synthesizer.stream(rows) if clip.failure is None}
        pitches = np.geomspace(80, 240, len(rows))
        references = [steady_voice(natural[number], float(rng.choice(pitches)), rng) for number in sorted(natural)]
        wanted = [(number, text) for text in TEXTS for number in range(len(references))][:num_clones]
        clones = synthesizer.stream(
            {
                "id": f"{number}/{place}",
                "text": text,
                "language": "english",
                "ref_audio": (references[number], SAMPLE_RATE_HZ),
                "ref_text": told[number][1],
            }
            for place, (number, text) in enumerate(wanted)
        )
        return references, [(int(clip.id.split("/")[0]), clip.audio) for clip in clones if clip.audio.size]


def load_clones(file: Path | None, num_clones: int, seed: int) -> tuple[list[Audio], list[tuple[int, Audio]]]:
    """Return what `make_clones` does, out of `file` where it exists."""
    if file is None or not file.exists():
        references, clones = make_clones(num_clones, seed)
        if file is not None:
            parts = {f"reference/{number}": audio for number, audio in enumerate(references)}
            np.savez(file, **parts, **{f"clone/{at}/{number}": audio for at, (number, audio) in enumerate(clones)})
        return references, clones
    kept = np.load(file, allow_pickle=False)
    names = [name.split("/") for name in kept.files]
    references = [kept["/".join(name)] for name in names if name[0] == "reference"]
    return references, [(int(name[2]), kept["/".join(name)]) for name in names if name[0] == "clone"]


def leaks(rng: np.random.Generator) -> dict[str, Callable[[Audio], Audio]]:
    """Return what happens to the end of a reference on its way into a clip."""

    def noisy(audio: Audio) -> Audio:
        return audio + 0.1 * np.sqrt(np.mean(audio**2)) * rng.standard_normal(audio.size)

    def stretched(factor: float, shift: float = 0.0) -> Callable[[Audio], Audio]:
        return lambda audio: np.interp(np.arange(shift, audio.size - 1, factor), np.arange(audio.size), audio)

    return {
        "unchanged": lambda audio: audio,
        "a fifth as loud": lambda audio: 0.2 * audio,
        "noise at 20 dB": noisy,
        "half a sample late": stretched(1.0, 0.5),
        "0.05 % fast": stretched(1.0005),
        "0.1 % fast": stretched(1.001),
        "by way of 16 kHz": lambda audio: resample(resample(audio, audio.size * 2 // 3), audio.size),
        "codec of tiny": codec_round_trip(),
    }


def codec_round_trip() -> Callable[[Audio], Audio]:
    """Return what encodes and decodes samples [samples] with the speech tokenizer of `tiny`."""
    import torch

    from tts_batch.model.checkpoint import resolve_checkpoint
    from tts_batch.model.qwen3_tts import Qwen3TTS
    from tts_batch.model.tiny.build import build_tiny

    model = Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny", "base"))), "cpu", torch.float32)
    return lambda audio: model.speech_tokenizer.decode(model.speech_tokenizer.encode(audio)).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-clones", type=int, default=1_008)
    parser.add_argument("--leak-s", type=float, default=1.3, help="seconds of the reference that are planted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clones", type=Path, help="an .npz file that keeps the clones")
    options = parser.parse_args()
    started = time.monotonic()
    references, clones = load_clones(options.clones, options.num_clones, options.seed)
    rng = np.random.default_rng(options.seed)
    pitches = [float(rng.uniform(80, 240)) for _ in references]
    voices = {"tiny": (references, clones)}
    for name, jitter in (("pitch of the reference, periods ±1 %", 0.01), ("pitch of the reference, exactly", 0.0)):
        voices[name] = (
            [steady_voice(audio, pitches[number], rng, jitter) for number, audio in enumerate(references)],
            [(number, steady_voice(audio, pitches[number], rng, jitter)) for number, audio in clones],
        )
    limit = CheckLimits().ref_correlation or 0.0
    found = {}
    for name, (recordings, clips) in voices.items():
        tails = [Tail(recording, SAMPLE_RATE_HZ) for recording in recordings]
        figures = np.array([tails[number].correlation(clip, SAMPLE_RATE_HZ) for number, clip in clips])
        alarms = int((figures >= limit).sum())
        found[f"clean, {name}"] = {"clips": len(clips), "found": alarms, "max": round(float(figures.max()), 3)}
        if name != "tiny" and "±" not in name:
            continue
        for leak, change in leaks(rng).items():
            ends = [
                np.asarray(change(one[-round(options.leak_s * SAMPLE_RATE_HZ) :]), np.float32) for one in recordings
            ]
            figures = np.array(
                [
                    tails[number].correlation(np.concatenate([ends[number], clip]), SAMPLE_RATE_HZ)
                    for number, clip in clips
                ]
            )
            found[f"leak, {name}: {leak}"] = {
                "clips": len(clips),
                "found": int((figures >= limit).sum()),
                "min": round(float(figures.min()), 3),
            }
    for name, figures_of in found.items():
        print(json.dumps({"case": name, **figures_of}))
    print(json.dumps({"limit": limit, "seconds": round(time.monotonic() - started)}))


if __name__ == "__main__":
    main()
