"""Every form of out of memory is one, and nothing else is."""

from __future__ import annotations

import pytest
import torch

from tts_batch.engine.memory_errors import is_out_of_memory, suppress_out_of_memory

OutOfResources = type("OutOfResources", (Exception,), {})
AcceleratorError = type("AcceleratorError", (RuntimeError,), {})

SHORTAGES = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    OutOfResources("out of resource: shared memory, Required: 131120, Hardware limit: 101376."),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
]
OTHERS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    AcceleratorError("CUDA error: device-side assert triggered"),
    ValueError("a text about running out of memory"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: str(error)[:40] or "MemoryError")
def test_a_shortage_is_recognised_and_suppressed(error: BaseException) -> None:
    assert is_out_of_memory(error)
    with suppress_out_of_memory():
        raise error


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_any_other_error_passes(error: BaseException) -> None:
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)), suppress_out_of_memory():
        raise error
