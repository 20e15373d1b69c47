"""The trained `tiny`: from the weights that the package stores to those of the official layout.

The layout's tables have a row for each of 2,048 codes, most of which this voice never uses, and there is one talker in
all three kinds of checkpoint. trained/ has everything once, the codec in float16, and of each tensor that ends in
equal rows only the first of those. recipes/tiny_voice/pack.py writes it.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.model.tiny.shapes import Shapes
from tts_batch.model.tiny.tensors import read_tensors

VOICE = files("tts_batch.model.tiny") / "trained"
WEIGHTS = ("voice.safetensors", "codec.safetensors")
FILES = ("config.json", "generation_config.json", "vocab.json", "merges.txt", "speech_tokenizer/config.json")
"""The files of its own, besides its weights; the other files are those of `tiny-random`."""


def voice_weights(shapes: Shapes) -> dict[str, NDArray[np.uint16]]:
    """The bfloat16 bit patterns of talker and code predictor, and of the speaker encoder where `shapes` has one."""
    return _expanded(VOICE / WEIGHTS[0], shapes)


def voice_codec(shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """The codec's float32 weights."""
    return {name: value.astype(np.float32) for name, value in _expanded(VOICE / WEIGHTS[1], shapes).items()}


def _expanded(file: Traversable, shapes: Shapes) -> dict[str, NDArray[Any]]:
    stored = read_tensors(file)
    wide = {}
    for name, shape in shapes.items():
        value = stored[name]
        wide[name] = np.concatenate([value, np.repeat(value[-1:], shape[0] - len(value), axis=0)])
    return wide
