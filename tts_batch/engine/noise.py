"""Counter-based Gumbel noise: a draw depends on (seed, frame, codebook, token id) and on nothing else.

So a row's audio does not depend on other rows, their order or the device, and a restarted row repeats itself.
The whole algorithm, on unsigned 32-bit words that wrap around:

    mix(x):  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16

    a = mix(seed_lo ^ 0x9e3779b9);  b = mix(seed_hi ^ 0x85ebca6b)        the two words of the seed
    a = mix(a ^ seed_hi);           b = mix(b ^ seed_lo)                 each word now depends on both halves
    a = mix(a ^ slot);              b = mix(b ^ slot)                    slot = 16 * frame + codebook: the key
    bits = mix(mix(a ^ token) + b)                                       one word for each token id
    uniform = ((bits >> 9) + 0.5) * 2**-23                               23 bits, exact in float32, never 0 or 1
    gumbel = -log(-log(uniform))                                         float32

A key has two words, so that two keys share their noise with probability 2**-64. Everything up to `uniform` is
bit-identical on every device; `log` may differ in its last bit. Tensors hold the words as int32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CODEBOOK_SLOTS = 16


def seed_words(seeds: Sequence[int], device: torch.device | str | None = None) -> Tensor:
    """Seeds of 0 .. 2**63 - 1 -> int32 [rows, 2]: the low and the high word of each."""
    words = [(_signed(seed & 0xFFFFFFFF), _signed(seed >> 32)) for seed in seeds]
    return torch.tensor(words, dtype=torch.int32, device=device).reshape(-1, 2)


def frame_keys(seeds: Tensor, frames: Tensor) -> Tensor:
    """The keys of one frame of each row: int32 [rows, 2], integer [rows] -> int32 [rows, 16, 2]."""
    state = _mix(seeds ^ _constants((0x9E3779B9, 0x85EBCA6B), seeds.device))
    state = _mix(state ^ seeds.flip(-1))
    codebooks = torch.arange(CODEBOOK_SLOTS, dtype=torch.int32, device=seeds.device)
    slots = frames.to(torch.int32)[:, None] * CODEBOOK_SLOTS + codebooks
    return _mix(state[:, None, :] ^ slots[:, :, None])


def uniform(keys: Tensor, tokens: Tensor) -> Tensor:
    """int32 keys [rows, 2], integer token ids [vocab] or [rows, n] -> float32 in the open interval (0, 1)."""
    bits = _mix(_mix(keys[:, :1] ^ tokens.to(torch.int32)) + keys[:, 1:])
    return (_shift_right(bits, 9).to(torch.float32) + 0.5) * 2.0**-23


def gumbel(keys: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise of every token id: int32 keys [rows, 2] -> float32 [rows, vocab]."""
    tokens = torch.arange(vocab, dtype=torch.int32, device=keys.device)
    return -torch.log(-torch.log(uniform(keys, tokens)))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 16)) * _signed(0x7FEB352D)
    x = (x ^ _shift_right(x, 15)) * _signed(0x846CA68B)
    return x ^ _shift_right(x, 16)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # int32 shifts copy the sign; the mask makes it the unsigned shift.
    return (x >> bits) & (0xFFFFFFFF >> bits)


def _constants(words: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([_signed(word) for word in words], dtype=torch.int32, device=device)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
