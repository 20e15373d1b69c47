"""Small host tensors on their way to the device: packed into one pinned buffer, sent by one asynchronous copy."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes: what Triton takes a pointer to be aligned to


def stage(device: torch.device, *hosts: Tensor) -> list[Tensor]:
    """Each tensor's values on the device, in its dtype and shape.

    The host tensors may change as soon as this returns.
    """
    starts = list(accumulate((-(-host.nbytes // ALIGNMENT) * ALIGNMENT for host in hosts), initial=0))
    # Pinned memory is not taken again before the copy has read it: the allocator sees to that.
    packed = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")

    def unpack(buffer: Tensor) -> list[Tensor]:
        return [
            buffer[start : start + host.nbytes].view(host.dtype).view(host.shape)
            for start, host in zip(starts, hosts, strict=False)
        ]

    for place, host in zip(unpack(packed), hosts, strict=True):
        place.copy_(host)
    return unpack(packed.to(device, non_blocking=True))
