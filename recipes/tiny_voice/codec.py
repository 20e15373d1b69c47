"""Train the speech tokenizer: the encoder, the codebooks and the decoder together.

    python codec.py --corpus /tmp/corpus --shards 40 --minutes 4 --out OUT [--resume FOLDER]

The decoded speech shall have the spectrum of the original at several resolutions. Codebook 0 also learns to tell
phonemes apart, so that the talker's first codes mean sounds, whoever makes them. How long a step takes does not
matter: the schedules run over the minutes.

Resumed, the decoder alone goes on, against a discriminator: the codes stay those that a talker may have learnt.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from corpus import LABELS_PER_FRAME, Corpus
from discriminator import Discriminator
from log import Log
from quantizer import LearningQuantizer
from shapes import NUM_CODES, codec_config
from synthesise import NUM_PHONEMES
from torch import Tensor, nn
from weights import load_pieces, save_pieces

from tts_batch.model.mel import NUM_MELS
from tts_batch.model.speech_tokenizer import SpeechTokenizer
from tts_batch.model.speech_tokenizer.decoder import Snake

CROP_FRAMES = (25, 50, 100)  # crops of 2, 4 and 8 s: the transformers learn what is near and what is far
LEARNING_RATE, RESUMED_RATE, FINAL_RATE = 1e-3, 4e-4, 2e-5
DISCRIMINATOR_RATE, ADVERSARIAL, FEATURES = 4e-4, 0.2, 10.0
COMMITMENT, PHONEMES = 0.25, 0.2
FFT_SIZES = (2048, 1024, 512, 256, 128)


class Codec(nn.Module):
    """The speech tokenizer with codebooks that learn."""

    def __init__(self) -> None:
        super().__init__()
        config = codec_config()
        self.network = SpeechTokenizer(config)
        width = config.decoder.codebook_dim // 2
        self.semantic = LearningQuantizer(1, NUM_CODES, width)
        self.acoustic = LearningQuantizer(config.decoder.num_quantizers - 1, NUM_CODES, width)
        self.phonemes = nn.Linear(width, LABELS_PER_FRAME * NUM_PHONEMES)

    def forward(self, audio: Tensor, depth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From audio [B, samples] and how many acoustic codebooks each item may use [B].

        Returns the decoded audio, the commitment loss and phoneme logits [B, T, 4, classes].
        """
        encoder, decoder = self.network.encoder, self.network.decoder
        latent = encoder.latent(audio[:, None])
        parts = encoder.quantizer
        first = parts.semantic_residual_vector_quantizer.input_proj(latent).transpose(1, 2)
        rest = parts.acoustic_residual_vector_quantizer.input_proj(latent).transpose(1, 2)
        first, first_loss = self.semantic(first, torch.ones_like(depth))
        rest, rest_loss = self.acoustic(rest, depth)
        x = decoder.quantizer.rvq_first.output_proj(first.transpose(1, 2))
        x = x + decoder.quantizer.rvq_rest.output_proj(rest.transpose(1, 2))
        x = decoder.pre_transformer(decoder.pre_conv(x).transpose(1, 2)).transpose(1, 2)
        decoded = decoder.decoder(decoder.upsample(x))[:, 0]
        logits = self.phonemes(first).unflatten(-1, (LABELS_PER_FRAME, NUM_PHONEMES))
        return decoded, first_loss + rest_loss, logits

    def save(self, folder: Path) -> None:
        """Write the state, without the network's own codebooks, which `settle` fills."""
        state = {k: v for k, v in self.state_dict().items() if not k.startswith("network.") or "codebook" not in k}
        save_pieces(state, folder, "codec")

    def load(self, folder: Path) -> None:
        """Read a state that `save` wrote."""
        _, unknown = self.load_state_dict(load_pieces(folder, "codec"), strict=False)
        assert not unknown, unknown
        self.semantic.started = self.acoustic.started = True

    @torch.no_grad()
    def settle(self) -> SpeechTokenizer:
        """Write the codebooks into the network, as its files hold them; entries beyond NUM_CODES are never nearest."""
        encoder, decoder = self.network.encoder.quantizer, self.network.decoder.quantizer
        for learnt, hearing, saying in (
            (self.semantic, encoder.semantic_residual_vector_quantizer, decoder.rvq_first),
            (self.acoustic, encoder.acoustic_residual_vector_quantizer, decoder.rvq_rest),
        ):
            for level, vectors in enumerate(learnt.vectors):
                heard, said = hearing.layers[level]["codebook"], saying.vq["layers"][level]["_codebook"]
                for codebook, unused in ((heard, 1e4), (said, 0.0)):
                    sums = getattr(codebook, codebook.sum_name)
                    codebook.cluster_usage.fill_(1)
                    sums.fill_(unused)
                    sums[:NUM_CODES] = vectors
                    codebook.to(sums.device)  # forgets the divided vectors
        return self.network


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


class SpectralLoss(nn.Module):
    """Mean distance of log mel and of linear magnitudes, over several window sizes."""

    def __init__(self) -> None:
        super().__init__()
        for size in FFT_SIZES:
            self.register_buffer(f"window_{size}", torch.hann_window(size), persistent=False)
            self.register_buffer(f"filters_{size}", _mel_filters(size), persistent=False)

    def forward(self, decoded: Tensor, original: Tensor) -> Tensor:
        losses = []
        for size in FFT_SIZES:
            ours, theirs = (self._magnitudes(audio, size) for audio in (decoded, original))
            filters = getattr(self, f"filters_{size}")
            for a, b in ((filters @ ours, filters @ theirs), (ours, theirs)):
                losses.append(F.l1_loss(_log(a), _log(b)))
            energy = theirs.pow(2).sum((1, 2)).clamp(min=1e-3)
            losses.append(((ours - theirs).pow(2).sum((1, 2)) / energy).sqrt().mean())
        return torch.stack(losses).sum() / len(FFT_SIZES)

    def _magnitudes(self, audio: Tensor, size: int) -> Tensor:
        spectrum = torch.stft(audio, size, size // 4, window=getattr(self, f"window_{size}"), return_complex=True)
        return torch.view_as_real(spectrum).pow(2).sum(-1).add(1e-8).sqrt()


def _log(magnitudes: Tensor) -> Tensor:
    return magnitudes.clamp(min=1e-2).log()


def _mel_filters(size: int) -> Tensor:
    """Triangles [mels, bins], evenly spaced in mels; fewer for short windows, whose bins are wide."""
    mels = min(NUM_MELS, size // 16)
    top = 2595 * torch.log10(torch.tensor(1 + 12_000 / 700))
    edges = 700 * (10 ** (torch.linspace(0, 1, mels + 2) * top / 2595) - 1)
    bins = torch.linspace(0, 12_000, size // 2 + 1)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return triangles / triangles.sum(-1, keepdim=True).clamp(min=0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--seconds-per-step", type=int, default=48)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True

    log = Log(args.out / "codec.log")
    corpus = Corpus.load(args.corpus, args.shards, args.device)
    log.say(f"{corpus.hours:.1f} h of speech in {len(corpus.texts)} clips")
    codec = Codec().to(args.device)
    fuse_snakes(codec)
    if args.resume:
        codec.load(args.resume)
    train(codec, corpus, args, log)
    codec.save(args.out)


def train(codec: Codec, corpus: Corpus, args: argparse.Namespace, log: Log) -> None:
    """Train for so many minutes."""
    spectral = SpectralLoss().to(args.device)
    discriminator = None
    if args.resume:
        codec.eval()
        codec.network.encoder.requires_grad_(False)
        discriminator = Discriminator().to(args.device)
        judging = torch.optim.AdamW(discriminator.parameters(), lr=DISCRIMINATOR_RATE, betas=(0.8, 0.99))
    learning_rate = RESUMED_RATE if args.resume else LEARNING_RATE
    optimizer = torch.optim.AdamW(codec.parameters(), lr=learning_rate, betas=(0.8, 0.99), weight_decay=0.01)
    start, step, progress = time.monotonic(), 0, 0.0
    while progress < 1:
        for group in optimizer.param_groups:
            group["lr"] = min(step / 100, 1) * (FINAL_RATE + (learning_rate - FINAL_RATE) * (1 - progress) ** 1.5)
        frames = CROP_FRAMES[step % len(CROP_FRAMES)]
        batch = int(args.seconds_per_step * 12.5) // frames
        starts = torch.randint(len(corpus.phonemes) - frames, (batch,), device=args.device)
        rows = starts[:, None] + torch.arange(frames, device=args.device)
        audio = corpus.waveform(rows)
        levels = codec.acoustic.usage.shape[0]
        depth = torch.full((batch,), levels, device=args.device)
        if codec.training:  # half of the items, but never all, use fewer codebooks
            depth[: batch // 2] = torch.randint(levels, (batch // 2,), device=args.device)

        decoded, commitment, logits = codec(audio, depth)
        spectrum = spectral(decoded, audio)
        phonemes = F.cross_entropy(logits.flatten(0, 2), corpus.phonemes[rows].long().flatten())
        loss = spectrum + COMMITMENT * commitment + PHONEMES * phonemes
        told = {}
        if discriminator:
            seen_through, unlike = discriminator.judge_decoder(audio, decoded)
            loss = loss + ADVERSARIAL * min(step / 500, 1) * (seen_through + FEATURES * unlike)
            told = {"seen_through": seen_through, "unlike": unlike}
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(codec.parameters(), 2.0)
        optimizer.step()
        if discriminator:
            judging.zero_grad(set_to_none=True)  # also of what the decoder's loss left there
            judgement = discriminator.loss(audio, decoded)
            judgement.backward()
            judging.step()
            told["judgement"] = judgement

        if step % 100 == 0:
            log.row(
                step=step,
                minutes=(time.monotonic() - start) / 60,
                loss=loss,
                spectrum=spectrum,
                full=spectral(decoded[depth == levels], audio[depth == levels]),
                commitment=commitment,
                phonemes=phonemes,
                used_0=codec.semantic.perplexity[0],
                used_1=codec.acoustic.perplexity[0],
                used_15=codec.acoustic.perplexity[-1],
                **told,
            )
        step += 1
        progress = (time.monotonic() - start) / 60 / args.minutes


if __name__ == "__main__":
    main()
