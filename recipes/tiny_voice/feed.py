"""The talker's data: shards as they appear, prepared by other processes and kept on the device."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from corpus import SAMPLES_PER_FRAME, Corpus, read_shard
from prompts import REFERENCES, ROW, Clips, ExampleMaker, Rows
from synthesise import LEAD_FRAMES
from torch import Tensor

from tts_batch.model.speech_tokenizer.encoder import CodecEncoder

SHARD_FRAMES, SHARD_ROWS = 8_200, 128  # capacity for a shard, on average
READY_SHARDS = 64  # laid out ahead, while there are no codes yet


@dataclass
class Shard:
    """A shard of the corpus with its examples; frames count from the shard's first."""

    audio: np.ndarray  # int16 [frames * 1920]
    starts: np.ndarray
    lengths: np.ndarray
    rows: Rows


def shards(folder: Path, count: int, seed: int, jobs: int) -> Iterator[Shard | None]:
    """Every shard once, in order, and None whenever the next is not there yet. A thread waits for them."""
    ready: queue.Queue[Shard] = queue.Queue(maxsize=READY_SHARDS)

    def work() -> None:
        with get_context("spawn").Pool(jobs, _start, [folder, seed]) as pool:
            for shard in pool.imap(_prepare, range(count)):
                ready.put(shard)

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield None if ready.empty() else ready.get()


def _start(folder: Path, seed: int) -> None:
    global _folder, _seed, _maker
    torch.set_num_threads(1)
    _folder, _seed, _maker = folder, seed, ExampleMaker()


def _prepare(number: int) -> Shard:
    content = read_shard(_folder / f"{number:05d}.npz", seconds=600)
    starts = np.cumsum(content.lengths) - content.lengths
    speech = (starts + LEAD_FRAMES, content.lengths - LEAD_FRAMES)
    clips = Clips(content.texts, content.instructs, content.voices, *speech)
    rows = _maker.rows(clips, random.Random(_seed * 100_000 + number))
    return Shard(content.audio, starts, content.lengths, rows)


class Store:
    """Speech, codes and rows of examples on the device, with a fixed capacity in shards."""

    def __init__(self, num_shards: int, device: str) -> None:
        frames, rows = num_shards * SHARD_FRAMES, num_shards * SHARD_ROWS
        self.audio = torch.zeros(frames, SAMPLES_PER_FRAME, dtype=torch.int16, device=device)
        self.codes = torch.zeros(frames, 16, dtype=torch.int16, device=device)
        self.rows = {
            name: torch.full((rows, *shape), fill, dtype=torch.int32, device=device)
            for name, shape, fill in (
                *((name, (ROW,), -1) for name in ("text", "codec", "frame", "target", "segment")),
                ("place", (REFERENCES,), -1),
                ("reference", (REFERENCES, 2), 10),
            )
        }
        self.num_frames = self.num_rows = 0
        # The same for the device to read; one row of nothing is there from the start.
        self.frames_there = torch.ones((), device=device)
        self.rows_there = torch.ones((), device=device)
        self._pending: list[tuple[int, Shard]] = []
        self.device = device

    def add(self, shard: Shard) -> bool:
        """Keep a shard's speech; its examples count once it is encoded. False when full."""
        count = len(shard.audio) // SAMPLES_PER_FRAME
        if self.num_frames + count > len(self.audio):
            return False
        speech = torch.from_numpy(shard.audio).view(-1, SAMPLES_PER_FRAME)
        self.audio[self.num_frames : self.num_frames + count] = speech.to(self.device)
        self._pending.append((self.num_frames, shard))
        self.num_frames += count
        return True

    def encode(self, encoder: CodecEncoder) -> None:
        """Encode what was added since the last call, and let its examples count."""
        for first, shard in self._pending:
            count = len(shard.rows.text)
            if self.num_rows + count > len(self.rows["text"]):
                break
            frames = len(shard.audio) // SAMPLES_PER_FRAME
            speech = self.audio[first : first + frames]
            corpus = Corpus(speech.view(-1), speech, shard.starts, shard.lengths)
            self.codes[first : first + frames] = corpus.encode(encoder)
            for field in fields(Rows):
                values = torch.from_numpy(getattr(shard.rows, field.name)).to(self.device)
                if field.name in ("frame", "target"):
                    values = torch.where(values >= 0, values + first, values)
                if field.name == "reference":
                    values[..., 0] += first
                self.rows[field.name][self.num_rows : self.num_rows + count] = values
            self.num_rows += count
            self.rows_there.fill_(self.num_rows)
            self.frames_there.fill_(first + frames)
        self._pending = []

    def draw(self, count: int) -> dict[str, Tensor]:
        """Random rows, int64, field by field."""
        chosen = (torch.rand(count, device=self.device) * self.rows_there).long()
        return {name: values[chosen].long() for name, values in self.rows.items()}
