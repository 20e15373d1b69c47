"""Training states on disk: float32 safetensors in pieces small enough to be carried anywhere."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

PIECE_BYTES = 15_000_000


def save_pieces(state: dict[str, Tensor], folder: Path, name: str) -> None:
    """Write NAME-0.safetensors, NAME-1.safetensors, ... into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces: list[dict[str, Tensor]] = [{}]
    for key, value in state.items():
        if sum(tensor.nbytes for tensor in pieces[-1].values()) + value.nbytes > PIECE_BYTES:
            pieces.append({})
        pieces[-1][key] = value.detach().cpu().contiguous()
    for number, piece in enumerate(pieces):
        save_file(piece, folder / f"{name}-{number}.safetensors")


def load_pieces(folder: Path, name: str) -> dict[str, Tensor]:
    """Read what save_pieces wrote."""
    paths = sorted(folder.glob(f"{name}-*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no {name}-*.safetensors")
    return {key: value for path in paths for key, value in load_file(path).items()}
