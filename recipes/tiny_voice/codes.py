"""Train what makes the codes: the encoder with the decoder's first half, then find the codebooks.

    python codes.py --corpus /tmp/corpus --shards 60 --until EPOCH_SECONDS --out OUT

The encoder's output must predict the outline of the speech, log mels every 10 ms, and its phonemes. That takes no
waveform, so a step is cheap. What becomes codebook 0 must predict phonemes on its own too, so that the talker's first
codes mean sounds, whoever speaks. Nothing is quantized during this training: noise of one strength in every direction
stands for it, so that what matters is encoded with large values. Then the codebooks are found by k-means, and the codes
are fixed: talker.py learns to predict them and decoder.py to decode them.

Codebooks trained jointly, with straight-through gradients, made the encoder's vectors grow without bound.
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

CROP_FRAMES = (25, 100)  # crops of 2 and 8 s: the transformers learn what is near and what is far
PEAK_RATE, FINAL_RATE, WARMUP_STEPS = 1e-3, 3e-5, 100
PHONEMES, SPREAD = 0.1, 0.05
NOISE_FIRST, NOISE_REST = 0.4, 0.25  # a little less than what one codebook and what seven of them leave over


def main() -> None:
    parser = training_parser(__doc__, log_every=100)
    parser.add_argument("--seconds-per-step", type=int, default=32)
    parser.add_argument("--crops", type=int, default=4000, help="of 4 s, to find the codebooks in")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True

    log = Log(args.out / "codes.log")
    corpus = Corpus.load(args.corpus, args.shards, args.device)
    log.message(f"{corpus.hours:.1f} h of speech in {len(corpus.lengths)} clips")
    codec = Codec().to(args.device)
    train(codec, corpus, args, log)
    codec.save(args.out)
    (args.out / "codec.done").touch()


class Trainer:
    """Steps for crops of one length."""

    def __init__(self, codec: Codec, corpus: Corpus, optimizer: torch.optim.Optimizer) -> None:
        self.codec, self.corpus, self.optimizer = codec, corpus, optimizer
        self.device = corpus.audio.device
        self.outline = Outline().to(self.device)

    def step(self, frames: int, batch: int) -> Values:
        """Update the weights once."""
        rows = self._crops(frames, batch)
        first, rest = self.codec.hear(self.corpus.waveform(rows))
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
        """Find the codebooks in the encoder's output for random crops; return the losses of others through them."""
        codec = self.codec
        heard = [codec.hear(self.corpus.waveform(some)) for some in self._crops(frames, crops).split(64)]
        codec.semantic.find(torch.cat([first for first, _ in heard]).flatten(0, 1))
        codec.acoustic.find(torch.cat([rest for _, rest in heard]).flatten(0, 1))
        rows = self._crops(frames, 32)
        first, rest = codec.hear(self.corpus.waveform(rows))
        (_, said_first), (_, said_rest) = codec.semantic(first), codec.acoustic(rest)
        pairs = {"first": (first, said_first), "rest": (rest, said_rest)}
        lost = {f"lost_{name}": (x - y).var() / x.var() for name, (x, y) in pairs.items()}
        return self._losses(rows, said_first, said_rest) | lost | {"loudest": rest.abs().max()}

    def _crops(self, frames: int, count: int) -> Tensor:
        starts = torch.randint(len(self.corpus.phonemes) - frames, (count,), device=self.device)
        return starts[:, None] + torch.arange(frames, device=self.device)

    def _losses(self, rows: Tensor, first: Tensor, rest: Tensor) -> Values:
        """Losses of what is predicted from the vectors: the outline and the phonemes of the frames [B, T]."""
        codec, spoken = self.codec, self.corpus.phonemes[rows].long()  # [B, T, 4]
        x = codec.upsample(first, rest).transpose(1, 2)
        outline = codec.outline(x).view(len(rows), -1, OUTLINE_WIDTH)
        return {
            "outline": (outline - self.outline(self.corpus.waveform(rows))).abs().mean(),
            "sounds": F.cross_entropy(codec.sounds(x).flatten(0, 1), spoken.flatten()),
            "phonemes": F.cross_entropy(codec.phonemes(first).view(spoken.numel(), -1), spoken.flatten()),
        }


def noisy(x: Tensor, strength: float) -> Tensor:
    """Vectors x [B, T, width] with noise relative to them all: to be louder everywhere helps nothing."""
    return x + strength * (x.var((0, 1)).mean() + 1e-8).sqrt() * torch.randn_like(x)


def correlation(x: Tensor) -> Tensor:
    """Mean squared correlation between the components of x [B, T, width]: 1 if all are equal."""
    x = x.flatten(0, 1)
    x = (x - x.mean(0)) / (x.std(0) + 1e-4)
    between = (x.T @ x / len(x)).pow(2)
    return (between.sum() - between.diagonal().sum()) / (x.shape[1] * (x.shape[1] - 1))


def train(codec: Codec, corpus: Corpus, args: argparse.Namespace, log: Log) -> None:
    """Train until the time is over, then find the codebooks."""
    rate = Rate(args.device, PEAK_RATE, FINAL_RATE, WARMUP_STEPS)
    trainer = Trainer(codec, corpus, adamw(codec, rate, betas=(0.8, 0.99), weight_decay=0.01))
    graph = args.device == "cuda" and not args.no_graph
    steps = [Step(partial(trainer.step, n, int(args.seconds_per_step * 12.5) // n), graph) for n in CROP_FRAMES]
    for step, progress in until(args.until, args.device):
        rate.set(step, progress)
        now = steps[step % len(steps)]
        now()
        if step % args.log_every == 0:
            log.metrics(step=step, share=progress, **now.values)
    log.metrics(**trainer.find_codebooks(args.crops))


if __name__ == "__main__":
    main()
