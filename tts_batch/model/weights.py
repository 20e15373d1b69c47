"""Weights of modules: from safetensors files, after a check of every name and shape, or random."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn


class WeightsError(Exception):
    """A weight file that does not fit the network. The message names the file and the tensors."""


def load_weights(module: nn.Module, path: Path, device: torch.device | str, dtype: torch.dtype) -> None:
    """Give `module`, built on the meta device, the file's tensors, on `device` and in `dtype`.

    Raises WeightsError when a tensor is missing, unexpected or of another shape than the network's.
    """
    expected = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            _check(path, expected, found)
            state = {name: _cast(file.get_tensor(name), dtype) for name in expected}
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    module.load_state_dict(state, assign=True)


def fill_random(module: nn.Module, device: torch.device | str, dtype: torch.dtype, seed: int) -> None:
    """Give `module`, built on the meta device, random values that keep activations near one."""
    generator = torch.Generator(device).manual_seed(seed)
    module.to(dtype).to_empty(device=device)
    for name, tensor in module.state_dict().items():
        if tensor.dim() >= 2:
            tensor.normal_(std=tensor[0].numel() ** -0.5, generator=generator)
        else:
            tensor.fill_(0.0 if name.endswith(("bias", "alpha", "beta")) else 1.0)


def _check(path: Path, expected: dict[str, list[int]], found: dict[str, list[int]]) -> None:
    problems = {
        "missing": sorted(expected.keys() - found.keys()),
        "unexpected": sorted(found.keys() - expected.keys()),
        "misshaped": [
            f"{name} {found[name]} instead of {shape}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ],
    }
    details = [f"{kind}: {_abbreviate(names)}" for kind, names in problems.items() if names]
    if details:
        raise WeightsError(f"{path} does not fit the network of its config.json; {'; '.join(details)}")


def _abbreviate(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
