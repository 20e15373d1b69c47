"""Loading safetensors files: what does not fit is named before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tts_batch.model.weights import WeightsError, fill_random, load_weights

CPU = torch.device("cpu")


def network() -> nn.Module:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))
        module.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
    return module.requires_grad_(False)


def values() -> dict[str, torch.Tensor]:
    return {
        "0.weight": torch.arange(6.0).reshape(2, 3).bfloat16(),
        "0.bias": torch.ones(2),
        "1.weight": torch.eye(2),
        "steps": torch.tensor([7]),
    }


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_have_the_requested_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    module = network()
    load_weights(module, write(tmp_path / "model.safetensors", values()), CPU, dtype)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, values()[name].to(dtype if tensor.is_floating_point() else torch.int64))
        assert not tensor.requires_grad
    assert module[0].weight.dtype == dtype


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"1.weight": None}, r"missing: 1\.weight"),
        ({"2.weight": torch.eye(2)}, r"unexpected: 2\.weight"),
        ({"0.weight": torch.zeros(3, 2)}, r"misshaped: 0\.weight \[3, 2\] instead of \[2, 3\]"),
        ({"0.bias": None, "bias": torch.ones(2)}, r"missing: 0\.bias; unexpected: bias"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    tensors = {name: tensor for name, tensor in (values() | change).items() if tensor is not None}
    with pytest.raises(WeightsError, match=message):
        load_weights(network(), write(tmp_path / "model.safetensors", tensors), CPU, torch.float32)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        load_weights(network(), path, CPU, torch.float32)
    path.write_bytes(write(tmp_path / "whole.safetensors", values()).read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        load_weights(network(), path, CPU, torch.float32)


def test_random_values_depend_on_the_seed_alone() -> None:
    first, again, other = (network() for _ in range(3))
    for module, seed in ((first, 1), (again, 1), (other, 2)):
        fill_random(module, CPU, torch.bfloat16, seed)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)
    assert first[0].weight.dtype == torch.bfloat16
