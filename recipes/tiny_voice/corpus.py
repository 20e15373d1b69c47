"""The synthesised clips as one tensor of samples, with the position of each clip."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from log import Log
from shapes import NUM_CODES, NUM_LEVELS
from synthesise import PHONEMES_PER_SECOND
from torch import Tensor

from tts_batch.model.speech_tokenizer.encoder import CodecEncoder

SAMPLES_PER_FRAME = 1920
LABELS_PER_FRAME = 4


@dataclass
class Corpus:
    """Clips back to back, each padded with silence to whole frames."""

    audio: Tensor  # int16 [samples], on the training device
    phonemes: Tensor  # uint8 [frames, 4], on the training device
    starts: np.ndarray  # int64 [clips], first frame
    lengths: np.ndarray  # int64 [clips], frames

    @classmethod
    def load(cls, folder: Path, num_shards: int, device: str, log: Log) -> Corpus:
        """Read the first `num_shards` shards, waiting until they exist, and log their duration."""
        shards = [read_shard(folder / f"{number:05d}.npz") for number in range(num_shards)]
        frames = np.concatenate([shard.lengths for shard in shards])
        corpus = cls(
            audio=torch.cat([torch.from_numpy(shard.audio).to(device) for shard in shards]),
            phonemes=torch.cat([torch.from_numpy(shard.phonemes).to(device) for shard in shards]),
            starts=np.cumsum(frames) - frames,
            lengths=frames,
        )
        log.say(f"{corpus.hours:.1f} h of speech in {len(corpus.lengths)} clips")
        return corpus

    @property
    def hours(self) -> float:
        """The duration of all clips."""
        return len(self.phonemes) / 12.5 / 3600

    def waveform(self, frames: Tensor) -> Tensor:
        """Float32 [B, T * 1920] of the frames [B, T]; an index past the end gives the last frame."""
        whole = self.audio.view(-1, SAMPLES_PER_FRAME)
        return whole[frames.clamp(max=len(whole) - 1)].flatten(1).float() / 32768

    @torch.no_grad()
    def encode(self, encoder: CodecEncoder) -> Tensor:
        """Codes int16 [frames, 16] of all clips, each encoded from its own beginning."""
        batch_frames = 20_000 if self.audio.is_cuda else 2_000
        codes = torch.zeros(len(self.phonemes), 16, dtype=torch.int16, device=self.audio.device)
        by_level = codes[:, :NUM_LEVELS]
        order = np.argsort(self.lengths, kind="stable")
        while len(order):
            clips = order[-max(1, batch_frames // int(self.lengths[order[-1]])) :]
            order = order[: -len(clips)]
            starts = torch.from_numpy(self.starts[clips]).to(codes.device)
            lengths = torch.from_numpy(self.lengths[clips]).to(codes.device)
            longest = -(-int(self.lengths[clips].max()) // 32) * 32  # few shapes: each has its kernels chosen anew
            steps = torch.arange(longest, device=codes.device)
            frames = starts[:, None] + steps
            # What follows a clip in the corpus enters here too; the encoder is causal, so its codes just go unused.
            encoded = encoder(self.waveform(frames)[:, None], NUM_LEVELS)
            inside = steps < lengths[:, None]
            by_level[frames[inside]] = encoded.transpose(1, 2)[inside].short()
        if int(codes.max()) >= NUM_CODES:
            raise ValueError(f"code {int(codes.max())}: the encoder's vectors lie nearer to unused entries")
        return codes


@dataclass
class ShardContent:
    """One file of synthesise.py, its clips padded with silence to whole frames."""

    audio: np.ndarray  # int16 [frames * 1920]
    phonemes: np.ndarray  # uint8 [frames, 4]
    texts: list[str]
    instructs: list[str]
    voices: np.ndarray  # int64 [clips]
    lengths: np.ndarray  # int64 [clips], frames


def read_shard(path: Path, seconds: float = 90) -> ShardContent:
    """Read a file, waiting until it exists. Raises TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear; does synthesise.py run?")
        time.sleep(0.2)
    with np.load(path) as shard:
        samples, labels, lengths = shard["audio"], shard["phonemes"], shard["length"]
        frames = -(-lengths // SAMPLES_PER_FRAME)
        audio = np.zeros(frames.sum() * SAMPLES_PER_FRAME, np.int16)
        phonemes = np.zeros((frames.sum(), LABELS_PER_FRAME), np.uint8)
        at = label_at = 0
        for length, start in zip(lengths, np.cumsum(frames) - frames, strict=True):
            count = -(-length * PHONEMES_PER_SECOND // 24_000)
            audio[start * SAMPLES_PER_FRAME :][:length] = samples[at : at + length]
            phonemes.reshape(-1)[start * LABELS_PER_FRAME :][:count] = labels[label_at : label_at + count]
            at += length
            label_at += count
        return ShardContent(audio, phonemes, shard["text"].tolist(), shard["instruct"].tolist(), shard["voice"], frames)
