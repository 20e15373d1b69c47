"""Trains the speech tokenizer's decoder on fixed codes, later also against a discriminator.

    python decoder.py --corpus /tmp/corpus --shards 72 --codec FOLDER --until EPOCH_SECONDS --out OUT

The decoded speech must match the original's spectrum at several resolutions. FOLDER is the output of codes.py or
decoder.py. OUT receives the codec, and OUT/unjudged the codec as it was before the discriminator began.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from codec import Codec, wait_for
from corpus import Corpus
from discriminator import Discriminator
from log import Log
from spectra import SpectralLoss
from stepping import Rate, Step, Values, adamw, training_parser, until
from torch import Tensor, nn

from tts_batch.model.speech_tokenizer.decoder import Snake

CROP_FRAMES = (25, 100)
PEAK_RATE, FINAL_RATE, WARMUP_STEPS = 1e-3, 2e-5, 100
DISCRIMINATOR_RATE, ADVERSARIAL, FEATURES = 4e-4, 0.1, 10.0
ALONE = 0.6  # share of the time without a discriminator


def main() -> None:
    parser = training_parser(__doc__)
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("--seconds-per-step", type=int, default=24)
    parser.add_argument("--rate", type=float, default=PEAK_RATE)
    parser.add_argument("--alone", type=float, default=ALONE)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True

    log = Log(args.out / "decoder.log")
    corpus = Corpus.load(args.corpus, args.shards, args.device, log)
    if args.device == "cuda":
        warm_up(corpus, args)
        log.say("warmed up")
    codec = Codec().to(args.device).eval()
    wait_for(args.codec)
    codec.load(args.codec)
    network = codec.settle()
    torch.backends.cudnn.benchmark = False  # it would benchmark each of the many lengths
    codes = corpus.encode(network.encoder)
    torch.backends.cudnn.benchmark = True
    log.say(f"codes used in each codebook: {[len(level.unique()) for level in codes.T]}")
    if args.device == "cuda" and not args.no_graph:
        fuse_snakes(network.decoder)
    train(codec, corpus, codes, args, log)
    codec.save(args.out)


def warm_up(corpus: Corpus, args: argparse.Namespace) -> None:
    """Warm up with steps of every kind on another decoder, so that kernels are compiled before the codes are ready."""
    decoder = Codec().to(args.device).network.decoder
    if not args.no_graph:
        fuse_snakes(decoder)
    trainer = Trainer(decoder, corpus, torch.zeros(len(corpus.phonemes), 16, device=args.device), args)
    for frames in CROP_FRAMES:
        for adversarial in (False, True):
            trainer.step(frames, int(args.seconds_per_step * 12.5) // frames, adversarial)


class FusedSnake(nn.Module):
    """The network's Snake as one kernel forward and one back."""

    def __init__(self, snake: Snake) -> None:
        super().__init__()
        self.alpha, self.beta = snake.alpha, snake.beta

    def forward(self, x: Tensor) -> Tensor:
        return _snake(x, self.alpha.exp()[:, None], 1 / (self.beta.exp() + 1e-9)[:, None])


@torch.compile(dynamic=True)
def _snake(x: Tensor, frequency: Tensor, height: Tensor) -> Tensor:
    return x + height * torch.sin(x * frequency).pow(2)


def fuse_snakes(module: nn.Module) -> None:
    """Put a FusedSnake, with the same parameters under the same names, in place of every Snake."""
    for name, child in module.named_children():
        if isinstance(child, Snake):
            setattr(module, name, FusedSnake(child))
        else:
            fuse_snakes(child)


class Trainer:
    """Training steps on random crops, with or without a discriminator."""

    def __init__(self, decoder: nn.Module, corpus: Corpus, codes: Tensor, args: argparse.Namespace) -> None:
        self.decoder, self.corpus, self.codes = decoder, corpus, codes
        self.spectral = SpectralLoss().to(args.device)
        self.discriminator = Discriminator().to(args.device)
        self.rate = Rate(args.device, args.rate, FINAL_RATE, WARMUP_STEPS)
        self.discriminator_rate = Rate(args.device, DISCRIMINATOR_RATE, FINAL_RATE, WARMUP_STEPS)
        self.optimizer = adamw(decoder, self.rate, betas=(0.8, 0.99), weight_decay=0.01)
        self.discriminator_optimizer = adamw(
            self.discriminator, self.discriminator_rate, betas=(0.8, 0.99), weight_decay=0.01
        )

    def step(self, frames: int, batch: int, adversarial: bool) -> Values:
        """Update the weights once."""
        decoder, discriminator, device = self.decoder, self.discriminator, self.codes.device
        starts = torch.randint(len(self.codes) - frames, (batch,), device=device)
        rows = starts[:, None] + torch.arange(frames, device=device)
        audio = self.corpus.waveform(rows)
        x = decoder.quantizer.decode(self.codes[rows].long().transpose(1, 2))
        x = decoder.pre_transformer(decoder.pre_conv(x).transpose(1, 2)).transpose(1, 2)
        decoded = decoder.decoder(decoder.upsample(x))[:, 0]
        spectrum = self.spectral(decoded, audio)
        loss, losses = spectrum, {"spectrum": spectrum}
        if adversarial:
            generator, features = discriminator.decoder_losses(audio, decoded)
            loss = loss + ADVERSARIAL * (generator + FEATURES * features)
            losses |= {"generator": generator, "features": features}
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 2.0)
        self.optimizer.step()
        if adversarial:
            self.discriminator_optimizer.zero_grad(set_to_none=True)  # the decoder's loss left gradients there
            losses["discriminator"] = discriminator.loss(audio, decoded)
            losses["discriminator"].backward()
            self.discriminator_optimizer.step()
        return {name: value.detach() for name, value in losses.items()}


def train(codec: Codec, corpus: Corpus, codes: Tensor, args: argparse.Namespace, log: Log) -> None:
    """Train until the time is up."""
    trainer = Trainer(codec.network.decoder, corpus, codes, args)
    graph = args.device == "cuda" and not args.no_graph

    def steps(adversarial: bool) -> list[Step]:
        return [
            Step(partial(trainer.step, n, int(args.seconds_per_step * 12.5) // n, adversarial), graph)
            for n in CROP_FRAMES
        ]

    now, adversarial, since = steps(False), False, 0
    for step, progress in until(args.until, args.device):
        if progress >= args.alone and not adversarial:
            codec.save(args.out / "unjudged")
            now, adversarial, since = steps(True), True, step
        trainer.rate.set(step, progress)
        trainer.discriminator_rate.set(step - since, progress)
        now[step % len(now)]()
        if step % args.log_every == 0:
            log.row(step=step, share=progress, **now[0].values)


if __name__ == "__main__":
    main()
