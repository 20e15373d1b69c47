"""Random values for the tensors of a checkpoint, each a function of its name, shape and seed alone.

A tensor's generator is keyed by the CRC of its name, so values depend neither on the order of the tensors nor on
torch. Spreads follow the fan-in, so that activations stay near one; the codec's convolutions and codebooks take
measured corrections from calibration.json, rounded to two digits so that no machine's rounding shows in them.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]

# By seed: the EOS row of the codec head times this, so that greedy runs of some kinds meet an EOS early.
EOS_GAIN = {80: 0.5, 1: 4.0, 2: 2.8, 3: 1.0, 4: 1.0}
CODEC_SEED = 0

MIN_CLUSTER_USAGE = 1e-5  # the codec divides its codebook sums by usage, clamped here
UNUSED_CODE = 7  # one codebook row that was never used, so that the clamp matters


def model_values(shapes: Shapes, seed: int, eos_id: int) -> dict[str, Array]:
    """Float32 values of talker, code predictor and speaker encoder; `eos_id`: the codec token that ends a clip."""
    values = {name: _model_value(name, shape, seed) for name, shape in shapes.items()}
    values["talker.codec_head.weight"][eos_id] *= np.float32(EOS_GAIN[seed])
    return values


def codec_values(
    config: dict[str, Any], shapes: Shapes, calibration: dict[str, Any], seed: int = CODEC_SEED
) -> dict[str, Array]:
    """Float32 values of the codec. `config`: speech_tokenizer/config.json, for the transposed convolutions' strides."""
    strides = _transposed_strides(config["decoder_config"])
    values = {name: _codec_value(name, shape, seed, strides.get(name)) for name, shape in shapes.items()}
    for name, gain in calibration["gain"].items():
        values[name] = values[name] * np.float32(gain)
    last_conv = next(reversed(calibration["gain"]))
    values[last_conv.replace("weight", "bias")] = np.full(1, -calibration["waveform_mean"], np.float32)

    for name in [name for name in shapes if name.endswith(".cluster_usage")]:
        codebook, usage = name.removesuffix(".cluster_usage"), _usage(values[name])
        if codebook.startswith("encoder."):
            seen = calibration["codebook"][codebook.removesuffix(".codebook")]
            entries = _normal(f"{codebook}.embed_sum", shapes[f"{codebook}.embed_sum"], seed)
            scaled = np.asarray(seen["mean"], np.float32) + np.float32(seen["std"]) * entries
            values[f"{codebook}.embed_sum"] = scaled * usage
        else:
            level = 0 if "rvq_first" in codebook else 1 + int(codebook.split("layers.")[1].split(".")[0])
            entries = _normal(f"{codebook}.embedding_sum", shapes[f"{codebook}.embedding_sum"], seed)
            values[f"{codebook}.embedding_sum"] = entries * np.float32(0.9**level) * usage
    return values


def _generator(name: str, seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64((zlib.crc32(name.encode()) << 8) ^ seed))


def _normal(name: str, shape: tuple[int, ...], seed: int) -> Array:
    return _generator(name, seed).standard_normal(shape, dtype=np.float32)


def _usage(cluster_usage: Array) -> Array:
    return np.maximum(cluster_usage, np.float32(MIN_CLUSTER_USAGE))[:, None]


def _model_value(name: str, shape: tuple[int, ...], seed: int) -> Array:
    z = _normal(name, shape, seed)
    if name.endswith("norm.weight"):
        return np.float32(1.0) + np.float32(0.15) * z
    if name.endswith(".bias"):
        return np.float32(0.1) * z
    if name.endswith("codec_head.weight") or ".lm_head." in name:
        return z * np.float32(3.0 / math.sqrt(shape[1]))
    if "text_embedding" in name:
        return z
    if "codec_embedding" in name:
        return np.float32(0.35) * z
    if len(shape) == 2:
        return z / np.float32(math.sqrt(shape[1]))
    return z * np.float32(1.2 / math.sqrt(shape[1] * shape[2]))


def _codec_value(name: str, shape: tuple[int, ...], seed: int, stride: int | None) -> Array:
    leaf = name.rsplit(".", 1)[1]
    if leaf == "initialized":
        return np.ones(shape, np.float32)
    if leaf == "cluster_usage":
        usage = _generator(name, seed).uniform(0.5, 3.0, shape).astype(np.float32)
        usage[UNUSED_CODE] = 0.0
        return usage
    z = _normal(name, shape, seed)
    if leaf in ("alpha", "beta"):
        return np.float32(0.3) * z
    if leaf == "gamma":
        return np.float32(0.5) + np.float32(0.1) * z
    if leaf == "scale":
        return np.float32(0.3) + np.float32(0.1) * z
    if name.endswith("norm.weight"):
        return np.float32(1.0) + np.float32(0.15) * z
    if leaf == "bias":
        return np.float32(0.05) * z
    if len(shape) == 2:
        return z / np.float32(math.sqrt(shape[1]))
    if stride:  # a transposed convolution's weight is [in, out, kernel]; kernel / stride taps meet at each sample
        return z / np.float32(math.sqrt(shape[0] * shape[2] / stride))
    return z / np.float32(math.sqrt(shape[1] * shape[2]))


def _transposed_strides(decoder: dict[str, Any]) -> dict[str, int]:
    upsample = {f"decoder.upsample.{i}.0.conv.weight": r for i, r in enumerate(decoder["upsampling_ratios"])}
    waveform = {f"decoder.decoder.{i}.block.1.conv.weight": r for i, r in enumerate(decoder["upsample_rates"], 1)}
    return upsample | waveform
