"""Times and checks the encoding of references on a CUDA device, one by one and batched, at the released shape.

    python -m benchmarks.kernels.bench_references [--clips 666] [--singly 40]

Random weights; the speaker encoder in bfloat16 and the codec in float32, as in the engine. The checks use float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from tts_batch.engine.voices.encoder import TOGETHER, Clip, ReferenceEncoder, Voice
from tts_batch.model.config import CodecConfig, ModelConfig
from tts_batch.model.mel import log_mel
from tts_batch.model.speaker_encoder import SpeakerEncoder
from tts_batch.model.speech_tokenizer import SpeechTokenizer
from tts_batch.model.weights import fill_random

RATE = 24_000


@dataclass(frozen=True)
class Encoders:
    """The encoders of a Base model."""

    speaker_encoder: SpeakerEncoder
    speech_tokenizer: SpeechTokenizer
    device: torch.device


def random_encoders(dtype: torch.dtype) -> Encoders:
    folder = files("tts_batch.model") / "released"
    config = ModelConfig.from_json(json.loads((folder / "base_1b7.json").read_text()))
    codec = CodecConfig.from_json(json.loads((folder / "speech_tokenizer.json").read_text()))
    with torch.device("meta"):
        encoders = Encoders(SpeakerEncoder(config.speaker_encoder), SpeechTokenizer(codec), torch.device("cuda"))
    fill_random(encoders.speaker_encoder.requires_grad_(False).eval(), "cuda", dtype, seed=0)
    fill_random(encoders.speech_tokenizer.requires_grad_(False).eval(), "cuda", torch.float32, seed=0)
    return encoders


def voice_like(rng: np.random.Generator) -> Clip:
    """A clip of 3 to 6 s: harmonics under a slow envelope, and noise."""
    t = np.arange(rng.integers(3 * RATE, 6 * RATE)) / RATE
    pitch_hz = rng.uniform(80, 250)
    wave = sum(np.sin(2 * np.pi * pitch_hz * k * t + rng.uniform(0, 6)) / k for k in range(1, 9))
    wave = 0.2 * wave * (0.3 + np.abs(np.sin(2 * np.pi * rng.uniform(1, 3) * t)))
    return (wave + rng.normal(scale=0.01, size=len(t))).astype(np.float32)


def encode_singly(encoders: Encoders, clips: list[Clip]) -> list[Voice]:
    return [(encoders.speaker_encoder.embed(clip), encoders.speech_tokenizer.encode(clip)) for clip in clips]


def encode_together(encoders: Encoders, clips: list[Clip]) -> list[Voice]:
    return ReferenceEncoder(encoders).encode(clips, [True] * len(clips))


def timed_s(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds until the call returns, and until the device has finished."""
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    run()
    returned_s = time.perf_counter() - started_s
    torch.cuda.synchronize()
    return returned_s, time.perf_counter() - started_s


def syncs(run: Callable[[], object]) -> str:
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        return f"FAILED: {str(error).splitlines()[0]}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def check(clips: list[Clip]) -> list[str]:
    """Compare clips encoded one by one and batched, in float32."""
    encoders = random_encoders(torch.float32)
    singly, together = encode_singly(encoders, clips), encode_together(encoders, clips)
    x_vectors = torch.stack([x for x, _ in together])
    alone = torch.stack([x for x, _ in singly])
    same = [a == b for (_, a), (_, b) in zip(singly, together, strict=True)]
    first_level = torch.cat([frames[:, 0] for frames in same]).float().mean().item()
    last_frames = torch.stack([frames[-1] for frames in same]).float().mean().item()
    latents = [latent_error(encoders.speech_tokenizer, clips[start : start + 16]) for start in range(0, len(clips), 16)]
    cosine = torch.cosine_similarity(x_vectors, alone).min().item()
    return [
        f"x-vectors: max error {(x_vectors - alone).abs().max().item():.1e} of std {alone.std().item():.2f}, "
        f"cosine >= {cosine:.8f}",
        f"latents: max error {max(latents):.1e} of their largest value, last frames included",
        f"codes equal: {100 * torch.cat(same).float().mean().item():.3f} %, of level 1 {100 * first_level:.3f} %, "
        f"in last frames {100 * last_frames:.3f} %",
    ]


def latent_error(tokenizer: SpeechTokenizer, clips: list[Clip]) -> float:
    """Max relative error of the latents of a padded batch."""
    audio, lengths = padded(clips)
    together = tokenizer.encoder.latent(audio[:, None], lengths)
    errors = []
    for clip, latent in zip(clips, together, strict=True):
        alone = tokenizer.encoder.latent(torch.from_numpy(clip).cuda()[None, None])[0]
        errors.append(((latent[:, : alone.shape[1]] - alone).abs().max() / alone.abs().max()).item())
    return max(errors)


def padded(clips: list[Clip]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(clip) for clip in clips])
    samples = -(-int(lengths.max()) // TOGETHER.step) * TOGETHER.step
    audio = torch.zeros(len(clips), samples)
    for row, clip in zip(audio, clips, strict=True):
        row[: len(clip)] = torch.from_numpy(clip)
    return audio.cuda(), lengths.cuda()


def parts(encoders: Encoders, clips: list[Clip]) -> list[str]:
    """Milliseconds of each part of one pass."""
    audio, lengths = padded(clips)
    speaker, codec = encoders.speaker_encoder, encoders.speech_tokenizer.encoder
    mel = log_mel(audio, lengths).to(torch.bfloat16)
    steps, step_lengths = codec.encoder(audio[:, None], lengths)
    steps = steps.transpose(1, 2)
    latent = codec.downsample(codec.encoder_transformer(steps).transpose(1, 2), step_lengths)
    runs = {
        "mel": lambda: log_mel(audio, lengths),
        "speaker encoder": lambda: speaker(mel, lengths // 256),
        "codec convolutions": lambda: codec.encoder(audio[:, None], lengths),
        "codec transformer": lambda: codec.encoder_transformer(steps),
        "quantizer": lambda: codec.quantizer.encode(latent, 16),
    }
    named = []
    for name, run in runs.items():
        run()
        named.append(f"{name} {1e3 * statistics.median(timed_s(run)[1] for _ in range(5)):.2f}")
    return [f"ms of one pass, {len(clips)} clips padded to {audio.shape[1] / RATE:.0f} s: {', '.join(named)}"]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clips", type=int, default=666)
    parser.add_argument("--singly", type=int, default=40)
    args = parser.parse_args()
    started_s = time.monotonic()
    torch.backends.cudnn.allow_tf32 = False
    rng = np.random.default_rng(0)
    clips = [voice_like(rng) for _ in range(args.clips)]
    audio_s = sum(map(len, clips)) / RATE
    encoders = random_encoders(torch.bfloat16)
    encode_singly(encoders, [clips[0][: 2 * RATE + 1]])  # loads libraries
    few = clips[: args.singly]
    single_s = timed_s(lambda: encode_singly(encoders, few))[1] * audio_s / (sum(map(len, few)) / RATE)
    torch.cuda.reset_peak_memory_stats()
    rows = [("singly, extrapolated", single_s, single_s)]
    for name in ("together, shapes new", "together, shapes known", "together, again"):
        rows.append((name, *timed_s(lambda: encode_together(encoders, clips))))
    peak_gib = torch.cuda.max_memory_allocated() / 2**30
    lines = [f"host syncs in 64 clips together: {syncs(lambda: encode_together(encoders, clips[:64]))}"]
    lines += parts(encoders, sorted(clips, key=len)[-16:])
    lines += check(few)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {len(clips)} clips, {audio_s:.0f} s of audio")
    print(f"{'':<24} {'s':>8} {'host, s':>8} {'ms a clip':>10} {'audio-s/s':>10}")
    for name, host_s, total_s in rows:
        clip_ms = 1e3 * total_s / len(clips)
        print(f"{name:<24} {total_s:>8.2f} {host_s:>8.2f} {clip_ms:>10.2f} {audio_s / total_s:>10.0f}")
    print("\n".join([f"peak memory {peak_gib:.1f} GiB, weights included", *lines]))
    print(f"{time.monotonic() - started_s:.0f} s in total")


if __name__ == "__main__":
    main()
