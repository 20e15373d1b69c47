"""Safetensors files in numpy alone, which has no bfloat16: such numbers are read and written as their bit patterns."""

from __future__ import annotations

import json
import struct
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_tensors(file: Traversable) -> dict[str, NDArray[Any]]:
    """The tensors of a file in F32, F16 or BF16 (as uint16 bit patterns)."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        values = np.frombuffer(content[8 + length + start : 8 + length + end], _TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def save_tensors(path: Path, tensors: dict[str, NDArray[Any]], dtype: str) -> None:
    """Write a file whose tensors are all of one safetensors `dtype`, in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in tensors.values():
            file.write(tensor.tobytes())
