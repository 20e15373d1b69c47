"""Train what makes the codes: the encoder, the codebooks, and the decoder's first half.

    python codes.py --corpus /tmp/corpus --shards 72 --until EPOCH_SECONDS --out OUT [--resume FOLDER]

The codes shall tell the outline of the speech, log mels every 10 ms, and its phonemes. That takes no waveform, so a
step costs little. Codebook 0 alone learns to tell phonemes too, so that the talker's first codes mean sounds, whoever
makes them. At first nothing is quantized; then the codebooks start from k-means over what the encoder has found.
Afterwards the codes stay as they are: talker.py learns to say them and decoder.py to make them heard.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from codec import Codec
from corpus import Corpus
from log import Log
from shapes import NUM_LEVELS
from spectra import OUTLINE_WIDTH, Outline
from stepping import Rate, Step, Values, adamw, until
from torch import Tensor, nn

CROP_FRAMES = (25, 100)  # crops of 2 and 8 s: the transformers learn what is near and what is far
PEAK_RATE, FINAL_RATE, WARMUP_STEPS = 1e-3, 3e-5, 100
FREE = 0.4  # of the time passes before anything is quantized
UNQUANTIZED, SHALLOW = 0.25, 0.25  # of the items afterwards; shallow ones use fewer codebooks
COMMITMENT, PHONEMES, SPREAD = 0.1, 0.1, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--seconds-per-step", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--log-every", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True

    log = Log(args.out / "codes.log")
    corpus = Corpus.load(args.corpus, args.shards, args.device)
    log.say(f"{corpus.hours:.1f} h of speech in {len(corpus.lengths)} clips")
    codec = Codec().to(args.device)
    if args.resume:
        codec.load(args.resume)
    train(codec, corpus, args, log)
    codec.save(args.out)
    (args.out / "codec.done").touch()


class Lesson:
    """Steps for crops of one length, with or without quantization."""

    def __init__(self, codec: Codec, corpus: Corpus, outline: Outline, optimizer: torch.optim.Optimizer) -> None:
        self.codec, self.corpus, self.outline, self.optimizer = codec, corpus, outline, optimizer
        self.device = corpus.audio.device

    def step(self, frames: int, batch: int, quantized: bool) -> Values:
        """Update the weights once."""
        codec, device = self.codec, self.device
        starts = torch.randint(len(self.corpus.phonemes) - frames, (batch,), device=device)
        rows = starts[:, None] + torch.arange(frames, device=device)
        audio = self.corpus.waveform(rows)
        spoken = self.corpus.phonemes[rows].long()  # [B, T, 4]

        first, rest = codec.hear(audio)
        commitment = first.new_zeros(())
        spread = correlation(first) + correlation(rest)
        full = torch.zeros(batch, dtype=torch.bool, device=device)
        if quantized:
            kind = (torch.arange(batch, device=device) + 0.5) / batch
            depth = torch.randint(1, NUM_LEVELS - 1, (batch,), device=device)
            full = kind > UNQUANTIZED + SHALLOW
            depth = torch.where(full, NUM_LEVELS - 1, torch.where(kind < UNQUANTIZED, 0, depth))
            first, first_loss = codec.semantic(first, depth.clamp(max=1))
            rest, rest_loss = codec.acoustic(rest, depth)
            commitment = first_loss + rest_loss
        x = codec.upsample(first, rest).transpose(1, 2)
        told = codec.outline(x).view(batch, -1, OUTLINE_WIDTH)
        distance = (told - self.outline(audio)).abs().mean((1, 2))
        sounds = F.cross_entropy(codec.sounds(x).flatten(0, 1), spoken.flatten())
        phonemes = F.cross_entropy(codec.phonemes(first).view(spoken.numel(), -1), spoken.flatten())
        loss = distance.mean() + COMMITMENT * commitment + PHONEMES * (sounds + phonemes)
        if not quantized:
            loss = loss + SPREAD * spread

        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(codec.parameters(), 1.0)
        self.optimizer.step()
        return {
            "outline": distance.mean().detach(),
            "full": ((distance * full).sum() / full.sum().clamp(min=1)).detach(),
            "commitment": commitment.detach(),
            "spread": spread.detach(),
            "phonemes": phonemes.detach(),
            "sounds": sounds.detach(),
        }

    @torch.no_grad()
    def start_codebooks(self, crops: int, frames: int = 50) -> None:
        """Start the codebooks from what the encoder makes of random crops."""
        starts = torch.randint(len(self.corpus.phonemes) - frames, (crops,), device=self.device)
        rows = starts[:, None] + torch.arange(frames, device=self.device)
        heard = [self.codec.hear(self.corpus.waveform(some)) for some in rows.split(64)]
        self.codec.semantic.start(torch.cat([first for first, _ in heard]).flatten(0, 1))
        self.codec.acoustic.start(torch.cat([rest for _, rest in heard]).flatten(0, 1))


def correlation(x: Tensor) -> Tensor:
    """Mean squared correlation between the components of x [B, T, width]: 1 if they all say the same."""
    x = x.flatten(0, 1)
    x = (x - x.mean(0)) / (x.std(0) + 1e-4)
    between = (x.T @ x / len(x)).pow(2)
    return (between.sum() - between.diagonal().sum()) / (x.shape[1] * (x.shape[1] - 1))


def train(codec: Codec, corpus: Corpus, args: argparse.Namespace, log: Log) -> None:
    """Train until the time is over."""
    rate = Rate(args.device, PEAK_RATE, FINAL_RATE, WARMUP_STEPS)
    optimizer = adamw(codec, rate, betas=(0.8, 0.99), weight_decay=0.01)
    lesson = Lesson(codec, corpus, Outline().to(args.device), optimizer)
    graph = args.device == "cuda" and not args.no_graph

    def steps(quantized: bool) -> list[Step]:
        return [
            Step(partial(lesson.step, n, int(args.seconds_per_step * 12.5) // n, quantized), graph) for n in CROP_FRAMES
        ]

    now, quantized = steps(False), False
    for step, progress in until(args.until, args.device):
        if progress > FREE and not quantized:
            lesson.start_codebooks(4 * args.seconds_per_step)
            now, quantized = steps(True), True
        rate.set(step, progress)
        now[step % len(now)]()
        if step % args.log_every == 0:
            used = {f"used_{n}": codec.acoustic.perplexity[n - 1] for n in (1, 4, 7)}
            used_0 = codec.semantic.perplexity[0]
            log.row(step=step, share=progress, **now[step % len(now)].values, used_0=used_0, **used)


if __name__ == "__main__":
    main()
