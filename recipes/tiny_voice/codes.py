"""Trains the codec's encoder and the first half of its decoder, then fits the codebooks by k-means.

    python codes.py --corpus /tmp/corpus --shards 60 --until EPOCH_SECONDS --out OUT

The encoder's vectors must predict the speech's log mels every 10 ms and its phonemes. That needs no waveform, so a step
is cheap. The vectors of codebook 0 alone must predict the phonemes too, so that the talker's first codes stand for
phonemes in any voice. Nothing is quantized meanwhile: isotropic noise stands in for it, so that whatever the loss needs
is given a large amplitude. Then k-means finds the codebooks, and the codes are final: talker.py and decoder.py learn
from them.

Codebooks learnt at the same time, with straight-through gradients, let the encoder's vectors grow without bound.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from codec import Codec
from corpus import Corpus
from log import Log
from spectra import OUTLINE_WIDTH, Outline
from stepping import Rate, Step, Values, adamw, training_parser, until
from torch import Tensor, nn

CROP_FRAMES = (25, 100)  # crops of 2 and 8 s: short and long context for the transformers
PEAK_RATE, FINAL_RATE, WARMUP_STEPS = 1e-3, 3e-5, 100
PHONEMES, SPREAD = 0.1, 0.05
NOISE_FIRST, NOISE_REST = 0.4, 0.25  # slightly below the residuals after one and after seven codebooks


def main() -> None:
    parser = training_parser(__doc__)
    parser.add_argument("--seconds-per-step", type=int, default=32)
    parser.add_argument("--crops", type=int, default=4000, help="of 4 s, to fit the codebooks to")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True

    log = Log(args.out / "codes.log")
    corpus = Corpus.load(args.corpus, args.shards, args.device, log)
    codec = Codec().to(args.device)
    train(codec, corpus, args, log)
    codec.save(args.out)
    (args.out / "codec.done").touch()


class Trainer:
    """Training steps on random crops."""

    def __init__(self, codec: Codec, corpus: Corpus, optimizer: torch.optim.Optimizer) -> None:
        self.codec, self.corpus, self.optimizer = codec, corpus, optimizer
        self.device = corpus.audio.device
        self.outline = Outline().to(self.device)

    def step(self, frames: int, batch: int) -> Values:
        """Update the weights once."""
        rows = self._crops(frames, batch)
        first, rest = self.codec.encode_latents(self.corpus.waveform(rows))
        spread = correlation(first) + correlation(rest)
        losses = self._losses(rows, noisy(first, NOISE_FIRST), noisy(rest, NOISE_REST))
        loss = losses["outline"] + PHONEMES * (losses["sounds"] + losses["phonemes"]) + SPREAD * spread
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.codec.parameters(), 1.0)
        self.optimizer.step()
        losses |= {"spread": spread, "loudness": rest.std()}
        return {name: value.detach() for name, value in losses.items()}

    @torch.no_grad()
    def find_codebooks(self, crops: int, frames: int = 50) -> Values:
        """Fit the codebooks to the encoder's vectors of random crops; return the losses of other crops through them."""
        codec = self.codec
        latents = [codec.encode_latents(self.corpus.waveform(some)) for some in self._crops(frames, crops).split(64)]
        codec.semantic.find(torch.cat([first for first, _ in latents]).flatten(0, 1))
        codec.acoustic.find(torch.cat([rest for _, rest in latents]).flatten(0, 1))
        rows = self._crops(frames, 32)
        first, rest = codec.encode_latents(self.corpus.waveform(rows))
        (_, first_quantized), (_, rest_quantized) = codec.semantic(first), codec.acoustic(rest)
        pairs = {"first": (first, first_quantized), "rest": (rest, rest_quantized)}
        lost = {f"lost_{name}": (x - y).var() / x.var() for name, (x, y) in pairs.items()}
        return self._losses(rows, first_quantized, rest_quantized) | lost | {"loudest": rest.abs().max()}

    def _crops(self, frames: int, count: int) -> Tensor:
        starts = torch.randint(len(self.corpus.phonemes) - frames, (count,), device=self.device)
        return starts[:, None] + torch.arange(frames, device=self.device)

    def _losses(self, rows: Tensor, first: Tensor, rest: Tensor) -> Values:
        """The losses of predicting the outline and the phonemes of the frames [B, T] from the vectors."""
        codec, spoken = self.codec, self.corpus.phonemes[rows].long()  # [B, T, 4]
        x = codec.upsample(first, rest).transpose(1, 2)
        outline = codec.outline(x).view(len(rows), -1, OUTLINE_WIDTH)
        return {
            "outline": (outline - self.outline(self.corpus.waveform(rows))).abs().mean(),
            "sounds": F.cross_entropy(codec.sounds(x).flatten(0, 1), spoken.flatten()),
            "phonemes": F.cross_entropy(codec.phonemes(first).view(spoken.numel(), -1), spoken.flatten()),
        }


def noisy(x: Tensor, strength: float) -> Tensor:
    """Vectors x [B, T, width] with noise relative to their overall scale, so that scaling them up gains nothing."""
    return x + strength * (x.var((0, 1)).mean() + 1e-8).sqrt() * torch.randn_like(x)


def correlation(x: Tensor) -> Tensor:
    """Mean squared correlation between the components of x [B, T, width]: 1 if all are equal."""
    x = x.flatten(0, 1)
    x = (x - x.mean(0)) / (x.std(0) + 1e-4)
    between = (x.T @ x / len(x)).pow(2)
    return (between.sum() - between.diagonal().sum()) / (x.shape[1] * (x.shape[1] - 1))


def train(codec: Codec, corpus: Corpus, args: argparse.Namespace, log: Log) -> None:
    """Train until the time is up, then fit the codebooks."""
    rate = Rate(args.device, PEAK_RATE, FINAL_RATE, WARMUP_STEPS)
    trainer = Trainer(codec, corpus, adamw(codec, rate, betas=(0.8, 0.99), weight_decay=0.01))
    graph = args.device == "cuda" and not args.no_graph
    steps = [Step(partial(trainer.step, n, int(args.seconds_per_step * 12.5) // n), graph) for n in CROP_FRAMES]
    for step, progress in until(args.until, args.device):
        rate.set(step, progress)
        now = steps[step % len(steps)]
        now()
        if step % args.log_every == 0:
            log.row(step=step, share=progress, **now.values)
    log.row(**trainer.find_codebooks(args.crops))


if __name__ == "__main__":
    main()
