"""The codec's residual vector quantizers: latents to codes (encoder side), codes to latents (decoder side)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.model.config import CodecDecoderConfig, CodecEncoderConfig


class Codebook(nn.Module):
    """One level's vectors, stored as the sums and counts of training and divided once, on first use.

    The division happens in the module's own dtype, as in the official codec: a bfloat16 codec divides in bfloat16.
    """

    cluster_usage: Tensor

    def __init__(self, size: int, width: int, sum_name: str) -> None:
        super().__init__()
        self.sum_name = sum_name
        self.register_buffer("cluster_usage", torch.ones(size))
        self.register_buffer(sum_name, torch.zeros(size, width))
        self._vectors: Tensor | None = None

    @property
    def vectors(self) -> Tensor:
        """[size, width]."""
        if self._vectors is None:
            self._vectors = getattr(self, self.sum_name) / self.cluster_usage.clamp(min=1e-5)[:, None]
        return self._vectors

    def nearest(self, x: Tensor) -> Tensor:
        """Indices int64 [...] of the vectors closest to x [..., width]. Distances are float32 in any dtype."""
        distances = torch.cdist(x.reshape(1, -1, x.shape[-1]).float(), self.vectors[None].float())[0]
        return distances.argmin(-1).view(x.shape[:-1])

    def look_up(self, codes: Tensor) -> Tensor:
        """Vectors [..., width] of codes [...]."""
        return F.embedding(codes, self.vectors)

    # Moving, casting or loading makes the divided vectors stale.
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Codebook:
        self._vectors = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._vectors = None
        super()._load_from_state_dict(*args, **kwargs)


class EncoderQuantizer(nn.Module):
    """Latents to codes: one semantic level and many acoustic ones, both quantizing the same latent."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        sizes = (config.hidden_size, config.codebook_dim, config.codebook_size)
        num_acoustic = config.num_quantizers - config.num_semantic_quantizers
        self.semantic_residual_vector_quantizer = ResidualEncoder(*sizes, config.num_semantic_quantizers)
        self.acoustic_residual_vector_quantizer = ResidualEncoder(*sizes, num_acoustic)

    def encode(self, latent: Tensor, levels: int) -> Tensor:
        """Codes int64 [B, levels, T] of a latent [B, latent_width, T]. Further levels are not computed."""
        semantic = self.semantic_residual_vector_quantizer
        codes = semantic.encode(latent, len(semantic.layers))
        codes += self.acoustic_residual_vector_quantizer.encode(latent, levels - len(codes))
        return torch.stack(codes, dim=1)


class ResidualEncoder(nn.Module):
    """A chain of codebooks, each quantizing the residual of those before it."""

    def __init__(self, latent_width: int, width: int, codebook_size: int, levels: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(latent_width, width, 1, bias=False)
        self.output_proj = nn.Conv1d(width, latent_width, 1, bias=False)  # in the checkpoint, never used
        codebooks = [Codebook(codebook_size, width, "embed_sum") for _ in range(levels)]
        for codebook in codebooks:
            codebook.register_buffer("initialized", torch.ones(1))  # in the checkpoint, never used
        self.layers = nn.ModuleList(nn.ModuleDict({"codebook": codebook}) for codebook in codebooks)

    def encode(self, latent: Tensor, levels: int) -> list[Tensor]:
        """The first `levels` codes, each [B, T], of a latent [B, latent_width, T]."""
        residual = self.input_proj(latent).transpose(1, 2)
        codes = []
        for layer in self.layers[:levels]:
            codebook = layer["codebook"]
            codes.append(codebook.nearest(residual))
            residual = residual - codebook.look_up(codes[-1])
        return codes


class DecoderQuantizer(nn.Module):
    """Codes to latents: semantic and acoustic vectors are summed separately, projected and added."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        sizes = (config.codebook_dim, config.codebook_dim // 2, config.codebook_size)
        self.semantic = config.num_semantic_quantizers
        self.rvq_first = ResidualDecoder(*sizes, self.semantic)
        self.rvq_rest = ResidualDecoder(*sizes, config.num_quantizers - self.semantic)

    def decode(self, codes: Tensor) -> Tensor:
        """Latent [B, latent_width, T] of codes int64 [B, levels, T]."""
        return self.rvq_first.decode(codes[:, : self.semantic]) + self.rvq_rest.decode(codes[:, self.semantic :])


class ResidualDecoder(nn.Module):
    """The sum of one vector from each codebook."""

    def __init__(self, latent_width: int, width: int, codebook_size: int, levels: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(latent_width, width, 1, bias=False)  # in the checkpoint, never used
        self.output_proj = nn.Conv1d(width, latent_width, 1, bias=False)
        codebooks = [Codebook(codebook_size, width, "embedding_sum") for _ in range(levels)]
        self.vq = nn.ModuleDict({"layers": nn.ModuleList(nn.ModuleDict({"_codebook": book}) for book in codebooks)})

    def decode(self, codes: Tensor) -> Tensor:
        """Latent [B, latent_width, T] of codes [B, levels, T]."""
        books = [layer["_codebook"] for layer in self.vq["layers"].children()]
        # One addition after another, as the official codec rounds in bfloat16.
        total = sum(book.look_up(level) for book, level in zip(books, codes.unbind(1), strict=True))
        return self.output_proj(total.transpose(1, 2))
