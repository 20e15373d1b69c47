"""Train the talker, the code predictor and the speaker encoder together, on the codes of a trained codec.

    python talker.py --corpus /tmp/corpus --shards 240 --codec FOLDER --minutes 4 --out OUT
                     [--resume FOLDER]

The losses are the official ones: cross-entropy of the first code or the end at every frame, and 0.3 times that of the
other fifteen codes given the talker's state. The predictor sees some of a batch's frames only: a frame costs it 16
positions.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from codec import Codec
from corpus import Corpus
from log import Log
from prompts import END, NO_TARGET, Batch, Clips, Examples
from shapes import NUM_CODES, model_config
from torch import Tensor, nn
from torch.utils.data import DataLoader
from weights import load_pieces, save_pieces

from tts_batch.model.mel import mel_filterbank
from tts_batch.model.prompt import REF_FRAME, X_VECTOR
from tts_batch.model.speaker_encoder import SpeakerEncoder
from tts_batch.model.talker import Talker

LEARNING_RATE, FINAL_RATE, WARMUP_STEPS = 1.5e-3, 2e-5, 300
PREDICTOR_WEIGHT, PREDICTOR_FRAMES = 0.3, 4096
CORRUPTED = 0.04  # of the codes that the talker hears of itself, so that it can go on after a slip
SAVE_EVERY = 0.25  # of the minutes
REFERENCE_FRAMES = (20, 60)  # how much of a clip the speaker encoder hears


class Voice(nn.Module):
    """Everything of model.safetensors; the code predictor's tables have one row for all the codes that are not used."""

    def __init__(self) -> None:
        super().__init__()
        config = model_config("base")
        self.num_unused = config.code_predictor.vocab_size - NUM_CODES
        self.talker = Talker(config.talker, replace(config.code_predictor, vocab_size=NUM_CODES + 1))
        self.speaker_encoder = SpeakerEncoder(config.speaker_encoder)
        for parameter in self.talker.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, batch: Batch, codes: Tensor, x_vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of the first codes and of the others [15], and the share of first codes guessed right.

        `codes` are those of the corpus [frames, 16]; `x_vectors` [B, H] count where a row has a place for one.
        """
        hidden = self._hidden(batch, codes, x_vectors)
        talks = batch.target != NO_TARGET
        state, target = hidden[talks], batch.target[talks]
        spoken = target != END
        config = self.talker.config
        code0 = torch.where(spoken, codes[target.clamp(min=0), 0].long(), config.codec_eos_token_id)
        logits = self.talker.codec_head(state).float()
        first = F.cross_entropy(logits, code0)
        right = (logits.argmax(-1) == code0).float().mean()

        frames = torch.nonzero(spoken)[:, 0]
        frames = frames[torch.randperm(len(frames), device=frames.device)[:PREDICTOR_FRAMES]]
        return first, self._others(state[frames], codes[target[frames]].long()), right

    def _hidden(self, batch: Batch, codes: Tensor, x_vectors: Tensor) -> Tensor:
        """The talker's states [B, L, H]."""
        talker = self.talker
        heard = codes[batch.frame.clamp(min=0)].long()
        if self.training:
            elsewhere = codes[torch.randint(len(codes), heard.shape[:2], device=heard.device)].long()
            heard = torch.where(torch.rand(heard.shape, device=heard.device) < CORRUPTED, elsewhere, heard)
        x = talker.project_text(batch.text.clamp(min=0)) * (batch.text >= 0)[..., None]
        x = x + talker.embed_code0(batch.codec.clamp(min=0)) * (batch.codec >= 0)[..., None]
        x = x + talker.embed_frames(heard) * (batch.codec == REF_FRAME)[..., None]
        x = x + x_vectors[:, None] * (batch.codec == X_VECTOR)[..., None]
        return run_stack(talker.stack, x)

    def _others(self, state: Tensor, codes: Tensor) -> Tensor:
        """Mean cross-entropy of codes 1..15 [15], each given the state [N, H] and the codes before it."""
        predictor = self.talker.code_predictor
        inputs = [predictor.project(state), predictor.project(self.talker.embed_code0(codes[:, 0]))]
        inputs += [predictor.embed(g, codes[:, g]) for g in range(1, 15)]
        hidden = run_stack(predictor.stack, torch.stack(inputs, 1))
        logits = torch.stack([predictor.logits(g, hidden[:, g]) for g in range(1, 16)], 1).float()
        logits[..., -1] += math.log(self.num_unused)  # one row that stands for many
        return F.cross_entropy(logits.transpose(1, 2), codes[:, 1:], reduction="none").mean(0)


def run_stack(stack: nn.Module, x: Tensor) -> Tensor:
    """Run a DecoderStack over whole sequences [B, L, H], each position seeing those before it."""
    rows, length, _ = x.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.unflatten(0, (rows, length)).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(0, 1)

    cos, sin = stack.rotary(torch.arange(length, device=x.device).repeat(rows))
    return stack(x.flatten(0, 1), cos, sin, attend).unflatten(0, (rows, length))


class References:
    """Log-mel spectrograms of pieces of clips, all of a batch equally long."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        device = corpus.audio.device
        self.starts, self.lengths = (torch.from_numpy(x).to(device) for x in (corpus.starts, corpus.lengths))
        self.window = torch.hann_window(1024, device=device)
        self.filters = torch.from_numpy(mel_filterbank()).to(device)

    def mel(self, clips: Tensor) -> Tensor:
        """[B, T, 128] of clips [B]. A clip that is too short is heard again and again."""
        frames = int(torch.randint(*REFERENCE_FRAMES, ()))
        start, length = self.starts[clips], self.lengths[clips]
        offset = (torch.rand(len(clips), device=clips.device) * (length - frames + 1).clamp(min=1)).long()
        rows = torch.arange(frames, device=clips.device) % length[:, None]
        padded = F.pad(self.corpus.waveform((start + offset)[:, None] + rows), (384, 384), mode="reflect")
        spectrum = torch.stft(padded, 1024, 256, window=self.window, center=False, return_complex=True)
        magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
        return torch.log((self.filters @ magnitude).clamp(min=1e-5)).transpose(1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--positions", type=int, default=32_000)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    log = Log(args.out / "talker.log")
    corpus = Corpus.load(args.corpus, args.shards, args.device)
    log.say(f"{corpus.hours:.1f} h of speech in {len(corpus.texts)} clips")
    codec = Codec().to(args.device).eval()
    codec.load(args.codec)
    codes = corpus.encode(codec.settle().encoder)
    log.say(f"codes used in each codebook: {[len(level.unique()) for level in codes.T]}")
    voice = Voice().to(args.device)
    if args.resume:
        voice.load_state_dict(load_pieces(args.resume, "talker"))
    log.say(f"{sum(p.numel() for p in voice.parameters()) / 1e6:.1f} M parameters")
    clips = Clips(corpus.texts, corpus.instructs, corpus.voices, corpus.starts, corpus.lengths)
    batches = DataLoader(
        Examples(clips, args.positions, args.seed), batch_size=None, num_workers=args.workers, prefetch_factor=8
    )
    train(voice, batches, codes, References(corpus), args, log)


def train(
    voice: Voice, batches: DataLoader[Batch], codes: Tensor, references: References, args: argparse.Namespace, log: Log
) -> None:
    """Train for so many minutes; now and then, and at the end, save."""
    decayed = [p for p in voice.parameters() if p.dim() > 1]
    others = [p for p in voice.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=args.device == "cuda")
    start, progress, next_save = time.monotonic(), 0.0, SAVE_EVERY
    for step, drawn in enumerate(batches):
        if progress >= 1:
            break
        rate = FINAL_RATE + (args.learning_rate - FINAL_RATE) * (1 - progress)
        for group in optimizer.param_groups:
            group["lr"] = min((step + 1) / WARMUP_STEPS, 1) * rate
        batch = drawn.to(args.device)
        cloned = torch.nonzero(batch.reference >= 0)[:, 0]
        x_vectors = torch.zeros(len(batch.reference), voice.talker.config.hidden_size, device=args.device)
        if len(cloned):
            x_vectors[cloned] = voice.speaker_encoder(references.mel(batch.reference[cloned]))
        with torch.autocast(args.device, torch.bfloat16):
            first, others_loss, right = voice(batch, codes, x_vectors)
        loss = first + PREDICTOR_WEIGHT * others_loss.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(voice.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            minutes = (time.monotonic() - start) / 60
            others_row = {f"code_{g}": others_loss[g - 1] for g in (1, 2, 4, 8, 15)}
            log.row(step=step, minutes=minutes, first=first, right=right, others=others_loss.mean(), **others_row)
        progress = (time.monotonic() - start) / 60 / args.minutes
        if progress >= next_save:
            save_pieces({name: value.bfloat16() for name, value in voice.state_dict().items()}, args.out, "talker")
            next_save += SAVE_EVERY


if __name__ == "__main__":
    main()
