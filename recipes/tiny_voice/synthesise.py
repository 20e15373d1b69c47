"""Synthesises the texts with espeak-ng into shards of clips, on all cores.

    python synthesise.py --hours 40 --out /tmp/corpus --seed 1

Shards appear one by one, each complete, so that training can begin on the first.
"""

from __future__ import annotations

import argparse
import os
import random
import zlib
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from espeak import SAMPLE_RATE, Espeak
from texts import read_texts
from voices import PACES, SPEAKERS, Voice, nameless_voices

BUILD = Path(__file__).parent / "build"
SHARD_SECONDS = 600
NUM_NAMELESS = 400
NAMED_SHARE = 0.4
VOICES_PER_SHARD = 16  # nameless ones, so that each has clips to clone the others from
SENTENCES = (1,) * 7 + (2, 2, 3, 4, 5)  # how many a clip holds
PACED_SHARE = 0.15  # of the named speakers' clips
PHONEMES_PER_SECOND = 50  # phoneme labels, four a frame
NUM_PHONEMES = 96
LEAD_FRAMES = 3  # of silence before every clip; prompts.py says what for
LEAD_SAMPLES = LEAD_FRAMES * 1920

SPEAKER_NAMES = list(SPEAKERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    shards = range(round(args.hours * 3600 / SHARD_SECONDS))
    with get_context("spawn").Pool(args.jobs, _start, [args.out, args.seed]) as pool:
        for _ in pool.imap_unordered(_speak_shard, shards):
            pass


def voice_table() -> list[Voice]:
    """Every voice of the training speech, by number."""
    return [*SPEAKERS.values(), *nameless_voices(NUM_NAMELESS)]


def _start(out: Path, seed: int) -> None:
    global _espeak, _texts, _voices, _out, _seed
    _espeak, _texts, _voices = Espeak(BUILD / "espeak"), read_texts(BUILD / "texts.txt.gz"), voice_table()
    _out, _seed = out, seed


def _speak_shard(number: int) -> None:
    rng = random.Random(_seed * 100_000 + number)
    nameless = rng.sample(range(len(SPEAKERS), len(_voices)), VOICES_PER_SHARD)
    texts, instructs, voices, audio, phonemes = [], [], [], [], []
    while sum(map(len, audio)) < SHARD_SECONDS * SAMPLE_RATE:
        text = " ".join(rng.choices(_texts, k=rng.choice(SENTENCES)))
        instruct = ""
        if rng.random() < NAMED_SHARE:
            voice = rng.randrange(len(SPEAKERS))
            instruct = rng.choice(list(PACES)) if rng.random() < PACED_SHARE else ""
        else:
            voice = rng.choice(nameless)
        how = _voices[voice]
        rate = round(how.rate * PACES.get(instruct, 1.0))
        spoken = _espeak.speak(text, how.espeak, pitch=how.pitch, rate=rate)
        if not len(spoken.samples):
            continue
        texts.append(text)
        instructs.append(instruct)
        voices.append(voice)
        audio.append(np.pad(spoken.samples, (LEAD_SAMPLES, 0)))
        later = [(LEAD_SAMPLES / SAMPLE_RATE + time, name) for time, name in spoken.phonemes]
        phonemes.append(_labels(later, len(audio[-1])))
    temporary = _out / f".{number:05d}.npz"
    np.savez(
        temporary,
        audio=np.concatenate(audio),
        phonemes=np.concatenate(phonemes),
        text=np.array(texts),
        instruct=np.array(instructs),
        voice=np.array(voices, np.int64),  # below len(SPEAKERS): a named speaker
        length=np.array([len(samples) for samples in audio], np.int64),
    )
    temporary.rename(_out / f"{number:05d}.npz")


def _labels(phonemes: list[tuple[float, str]], samples: int) -> np.ndarray:
    """One phoneme class every 20 ms, uint8, the clip's end rounded up; stress is ignored, 0 is silence."""
    labels = np.zeros(-(-samples * PHONEMES_PER_SECOND // SAMPLE_RATE), np.uint8)
    for time, name in phonemes:
        bare = name.strip("',%=_:|;")
        labels[int(time * PHONEMES_PER_SECOND) :] = 1 + zlib.crc32(bare.encode()) % (NUM_PHONEMES - 1) if bare else 0
    return labels


if __name__ == "__main__":
    main()
