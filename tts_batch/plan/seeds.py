"""Seeds: each take, attempt and piece of a row has its own, the same on every machine and in every run."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(
    run_seed: int, row_id: str, *, take: int = 0, attempt: int = 0, piece: int = 0, explicit: int | None = None
) -> int:
    """Return a seed in 0 .. 2**63 - 1: 63 bits of blake2b(run seed, id, take, attempt and any later piece).

    An `explicit` seed is used as it is for the first take's first attempt, and in the run seed's place after that. A
    text that is not split is its own first piece.
    """
    if explicit is not None and take == attempt == piece == 0:
        return explicit
    parts = [run_seed if explicit is None else explicit, row_id, take, attempt, *([piece] if piece else [])]
    key = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 1
