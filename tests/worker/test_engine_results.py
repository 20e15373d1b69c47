"""What an engine returns is checked when it arrives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tts_batch.engine.request import SpeechResult
from tts_batch.worker.engine_results import check_result, is_device_broken, own_arrays

GOOD = SpeechResult("a", np.ones(1_920, np.float32), 24_000, np.zeros((1, 16), np.int64), 1, "stop", True)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("audio", [0.0, 0.1], "audio is list, not a float32 array"),
        ("audio", np.zeros(9), "audio is float64"),
        ("codes", np.zeros(16), "codes are not an integer array"),
        ("codes", [[1] * 16], "codes are not an integer array"),
        ("sample_rate", "24000", "sample_rate is '24000', not a whole number"),
        ("num_frames", None, "num_frames is None"),
        ("finish_reason", None, "finish_reason is None"),
        ("effective", None, "effective is None, not a mapping"),
    ],
)
def test_a_field_of_another_type_becomes_an_error_of_the_request(field: str, value: Any, words: str) -> None:
    checked = check_result(replace(GOOD, **{field: value}))
    assert (checked.request_id, checked.finish_reason, checked.reason) == ("a", "error", "engine_error")
    assert words in str(checked.error)
    assert checked.audio is None


def test_a_result_that_keeps_to_the_contract_is_taken_as_it_is() -> None:
    assert check_result(GOOD) is GOOD
    silent = replace(GOOD, audio=None, codes=None, sample_rate=np.int64(8_000))
    assert check_result(silent) is silent


def test_an_engine_that_uses_its_buffers_again_changes_nothing() -> None:
    audio, codes = np.ones(9, np.float32), np.ones((1, 16), np.int64)
    own = own_arrays(replace(GOOD, audio=audio, codes=codes))
    audio[:], codes[:] = 0, 0
    assert own.audio is not None and own.audio.min() == 1
    assert own.codes is not None and own.codes.min() == 1


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        ("CUDA error: device-side assert triggered", True),
        ("preparing this row raised AcceleratorError: CUDA error: an illegal memory access was encountered", True),
        ("preparing this row raised RuntimeError: cuBLAS error: CUBLAS_STATUS_EXECUTION_FAILED", True),
        ("HIP error: unspecified launch failure", True),
        ("the device has too little memory to prepare this row.", False),
        ("The text names CUDA. It is an error of the table.", False),
        (None, False),
    ],
)
def test_the_devices_errors_are_known(error: str | None, broken: bool) -> None:
    result = SpeechResult("a", None, 24_000, None, 0, "error", False, reason="engine_error", error=error)
    assert is_device_broken(result) is broken
