"""The GPU hours of a run, from measured figures, and its memory, from the model's shape."""

from __future__ import annotations

from dataclasses import dataclass

from tts_batch.model.checkpoint import Checkpoint
from tts_batch.plan.budget import FRAMES_PER_S


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """A measured speed of a card, from an entry of benchmarks/log.md."""

    card: str
    entry: str
    frame_s: float  # runner v2, a frame of `rows` rows
    rows: int
    codec_audio_s_per_s: float  # Code2Wav, beside the frames on the same GPU

    def gpu_s(self, audio_s: float) -> float:
        """Return the seconds of one GPU for an amount of audio, without prefill, start-up and the last rows."""
        return audio_s * (FRAMES_PER_S * self.frame_s / self.rows + 1 / self.codec_audio_s_per_s)


# By the talker's hidden size: the 1.7B models. Others have not been measured, and get no estimate.
_SPEEDS = {2048: MeasuredSpeed("H200", "2026-11-30", frame_s=0.01018, rows=512, codec_audio_s_per_s=6327)}
_BYTES = 2  # of a number in the KV cache, bfloat16


def speed_of(checkpoint: Checkpoint) -> MeasuredSpeed | None:
    """Return the measured speed of models of this shape, None without a measurement."""
    return _SPEEDS.get(checkpoint.config.talker.hidden_size)


def weights_bytes(checkpoint: Checkpoint) -> int:
    """Return the size of the weights on disk."""
    return sum(file.stat().st_size for file in checkpoint.path.rglob("*.safetensors"))


def cache_bytes(checkpoint: Checkpoint, positions: float) -> int:
    """Return the size of the KV cache of a row with `positions` (prompt and frames)."""
    talker = checkpoint.config.talker
    return round(2 * talker.num_hidden_layers * talker.num_key_value_heads * talker.head_dim * _BYTES * positions)
