"""Trains the talker, the code predictor and the speaker encoder together, on the codes of a trained codec.

    python talker.py --corpus /tmp/corpus --shards 960 --codec FOLDER --until EPOCH_SECONDS --out OUT
                     [--resume FOLDER [--new-codes]]

The losses are the official ones: cross-entropy of the first code or the end at every frame, and 0.3 times that of the
other codes given the talker's state. Training begins with the first shards and adds others as they appear.
Before that, while it waits for the codec, it compiles the layers and captures a step.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from codec import Codec, wait_for
from feed import Store, shards
from log import Log
from prompts import ROW
from stepping import Rate, Step, Values, adamw, training_parser, until
from torch import Tensor, nn
from voice import Voice, run_stack
from weights import load_pieces, save_pieces

from tts_batch.model.mel import mel_filterbank

PEAK_RATE, FINAL_RATE, WARMUP_STEPS = 1.5e-3, 2e-5, 400
PREDICTOR_WEIGHT = 0.3
REFERENCE_FRAMES = 36  # of a clip, the input of the speaker encoder
FIRST_SHARDS = 60  # to begin training with
SAVE_EVERY = 0.25  # share of the time


class Trainer:
    """Steps on random rows of a store."""

    def __init__(self, voice: Voice, store: Store, args: argparse.Namespace) -> None:
        self.voice, self.store, self.batch = voice, store, args.positions // ROW
        self.device = args.device
        self.rate = Rate(args.device, args.rate, FINAL_RATE, WARMUP_STEPS)
        self.optimizer = adamw(voice, self.rate, betas=(0.9, 0.98), weight_decay=0.05)
        self.window = torch.hann_window(1024, device=args.device)
        self.filters = torch.from_numpy(mel_filterbank()).to(args.device)

    def step(self) -> Values:
        """Update the weights once."""
        rows = self.store.draw(self.batch)
        wrong = (torch.rand(rows["text"].shape, device=self.device) * self.store.frames_there).long()
        mel = self._mel(rows["reference"].flatten(0, 1))
        with torch.autocast(self.device, torch.bfloat16):
            losses = self.voice(rows, self.store.codes, wrong, mel)
        loss = losses["first"] + PREDICTOR_WEIGHT * losses["others"].mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.voice.parameters(), 1.0)
        self.optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def forget(self, initial: dict[str, Tensor]) -> None:
        """Undo the warm-up steps."""
        self.voice.load_state_dict(initial)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def _mel(self, clips: Tensor) -> Tensor:
        """Log mels [N, T, 128] of a piece of each clip [N, 2], all equally long: a short clip is repeated."""
        start, length = clips.unbind(1)
        latest = (length - REFERENCE_FRAMES + 1).clamp(min=1)
        offset = (torch.rand(len(clips), device=clips.device) * latest).long()
        frames = (offset[:, None] + torch.arange(REFERENCE_FRAMES, device=clips.device)) % length[:, None]
        audio = self.store.audio[start[:, None] + frames].flatten(1).float() / 32768
        padded = F.pad(audio, (384, 384), mode="reflect")
        spectrum = torch.stft(padded, 1024, 256, window=self.window, center=False, return_complex=True)
        magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
        return torch.log((self.filters @ magnitude).clamp(min=1e-5)).transpose(1, 2)


def main() -> None:
    parser = training_parser(__doc__)
    parser.add_argument("--first-shards", type=int, default=FIRST_SHARDS)
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--new-codes", action="store_true", help="the resumed talker was trained on other codes")
    parser.add_argument("--rate", type=float, default=PEAK_RATE)
    parser.add_argument("--positions", type=int, default=32_768)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--no-compile", action="store_true")
    parser.set_defaults(log_every=200)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    log = Log(args.out / "talker.log")
    feed = shards(args.corpus, args.shards, args.seed, args.jobs)
    store = Store(args.shards, args.device)
    voice = Voice().to(args.device)
    if args.resume:
        voice.load_state_dict(load_pieces(args.resume, "talker"))
        if args.new_codes:
            voice.forget_codes()
    log.say(f"{sum(p.numel() for p in voice.parameters()) / 1e6:.1f} M parameters")
    trainer = Trainer(voice, store, args)
    step = prepare(trainer, args, log)

    wait_for(args.codec)
    codec = Codec().to(args.device).eval()
    codec.load(args.codec)
    encoder = codec.settle().encoder
    added = 0
    while added < min(args.first_shards, args.shards):
        shard = next(feed)
        if shard is None:
            time.sleep(0.05)
        else:
            added += store.add(shard)
    store.encode(encoder)
    used = [len(level.unique()) for level in store.codes[: store.num_frames].T]
    log.say(f"{store.num_frames / 12.5 / 3600:.1f} h in {store.num_rows} rows; codes used in each codebook: {used}")

    number, next_save = -1, SAVE_EVERY
    for number, progress in until(args.until, args.device):
        if number % 10 == 0 and (shard := next(feed)) is not None and store.add(shard):
            store.encode(encoder)
        trainer.rate.set(number, progress)
        step()
        if number % args.log_every == 0:
            hours = store.num_frames / 12.5 / 3600
            values = dict(step.values)
            others = values.pop("others")
            codes = {f"code_{g}": others[g - 1] for g in range(1, len(others) + 1)}
            log.row(step=number, share=progress, hours=hours, **values, mean=others.mean(), **codes)
        if progress >= next_save:
            save(voice, args.out)
            next_save += SAVE_EVERY
    save(voice, args.out)
    log.say(f"{number + 1} steps")
    os._exit(0)  # without waiting for processes that lay out shards


def prepare(trainer: Trainer, args: argparse.Namespace, log: Log) -> Step:
    """Compile and capture a step on empty rows, then restore the weights."""
    voice = trainer.voice
    initial = {name: value.clone() for name, value in voice.state_dict().items()}
    if not args.no_compile:
        voice.run_talker = torch.compile(run_stack, dynamic=False)
        voice.run_predictor = torch.compile(run_stack, dynamic=False)
        try:
            trainer.step()
            log.say("compiled")
        except Exception as error:  # training works without compilation
            log.say(f"not compiled: {error}")
            voice.run_talker = voice.run_predictor = run_stack
    step = Step(trainer.step, args.device == "cuda" and not args.no_graph)
    step()
    trainer.forget(initial)
    log.say("ready")
    return step


def save(voice: Voice, folder: Path) -> None:
    """Write the state in bfloat16, as the checkpoints hold it."""
    save_pieces({name: value.bfloat16() for name, value in voice.state_dict().items()}, folder, "talker")


if __name__ == "__main__":
    main()
