"""Whether Triton is here, and for which tensors it is used. The kernel modules import it from this place only."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError
except ImportError:  # the CPU builds of torch bring no Triton
    triton = None
    tl = None
    _UNFIT: tuple[type[Exception], ...] = ()
else:
    _UNFIT = (OutOfResources, CompilationError, PTXASError)

logger = logging.getLogger(__name__)

Option = TypeVar("Option")

_NUM_UNFIT: dict[Hashable, int] = {}  # by launch_fitting's key: how many of the first options do not fit

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_ALLOWED = ContextVar("triton_kernels_allowed", default=True)


def jit(function: Callable[..., Any] | None = None, *, do_not_specialize: Sequence[str] = ()) -> Any:
    """`triton.jit` where Triton is here; elsewhere the function stays as it is and is never launched.

    `do_not_specialize` names the arguments that change from call to call, so that no value of theirs compiles anew.
    """
    if function is None:
        return partial(jit, do_not_specialize=do_not_specialize)
    return function if triton is None else triton.jit(function, do_not_specialize=do_not_specialize)


def uses_triton(x: Tensor) -> bool:
    """Whether kernels (rather than their torch twins) serve tensors on this one's device."""
    return triton is not None and (x.is_cuda or _INTERPRETED) and _ALLOWED.get()


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a CUDA device; of any other none: (0, 0)."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" and torch.version.hip is None else (0, 0)


@cache
def launches_early(device: torch.device) -> bool:
    """Whether kernels are launched before the one in front is over: programmatic dependent launch, from sm90 on.

    It pays only behind a kernel that calls `gdc_launch_dependents`: behind one of cuBLAS it costs half a microsecond.
    A kernel launched so calls `gdc_wait` before it touches anything that another kernel writes or reads.
    """
    return capability(device) >= (9, 0)


def launch_fitting(
    key: Hashable,
    options: Sequence[Option],
    launch: Callable[[Option], None],
    unfit: type[Exception] | tuple[type[Exception], ...] = _UNFIT,
) -> bool:
    """Launch a kernel with the first of some options that the device can hold, the fastest first; False: none.

    `key` names the kernel, its shape and its device. What exceeds the device's shared memory, or does not compile for
    it (the errors `unfit`), is logged once and not tried again.
    """
    for tried in range(_NUM_UNFIT.get(key, 0), len(options)):
        try:
            launch(options[tried])
        except unfit as error:
            _NUM_UNFIT[key] = tried + 1
            following = "with the next" if tried + 1 < len(options) else "by torch's own operations"
            logger.warning("kernel %s cannot run with %s, going on %s: %s", key, options[tried], following, error)
        else:
            return True
    return False


@contextmanager
def kernels_allowed(allowed: bool) -> Iterator[None]:
    """Within it and on this thread, False leaves every tensor to the torch twins: an engine that is `eager`."""
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below n >= 1."""
    return 1 << (n - 1).bit_length()


__all__ = [
    "capability",
    "jit",
    "kernels_allowed",
    "launch_fitting",
    "launches_early",
    "next_power_of_2",
    "tl",
    "triton",
    "uses_triton",
]
