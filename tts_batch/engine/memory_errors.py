"""Out of memory in all its forms, recognised in one place. Importing it loads no torch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

_TYPES = ("OutOfMemoryError", "OutOfResources")  # torch's, of any device; Triton's, where a kernel asks for too much
_RUNTIME_TYPES = ("RuntimeError", "AcceleratorError")
_PHRASES = (  # of errors that torch raises as one of the types above
    "out of memory",  # CUDA, HIP, graph instantiation, and pinned allocations
    "cudaerrormemoryallocation",
    "cublas_status_alloc_failed",
    "cublas_status_not_initialized",  # what cuBLAS says when its workspace does not fit
    "cudnn_status_alloc_failed",
    "device_allocation_failed",  # cuDNN 9
    "host_allocation_failed",
    "cusolver_status_alloc_failed",
    "unable to find an engine to execute this computation",  # cuDNN: no workspace fits
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, or memory pinned for it, is full: asking for less may succeed."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, MemoryError) or not names.isdisjoint(_TYPES):
        return True
    text = str(error).lower()
    return not names.isdisjoint(_RUNTIME_TYPES) and any(phrase in text for phrase in _PHRASES)


class suppress_out_of_memory(AbstractContextManager[None]):  # noqa: N801 - named as contextlib.suppress is
    """`contextlib.suppress` for every form of out of memory. Behind it the error is gone, with the tensors it kept."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return error is not None and is_out_of_memory(error)
