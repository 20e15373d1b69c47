"""What an engine returns is checked when it arrives."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.run.support import make_active, make_request
from tts_batch.choices import Format
from tts_batch.engine.request import SpeechResult
from tts_batch.ipc.messages import ClipRules, EngineLabels
from tts_batch.store.journal import Outcome
from tts_batch.store.schema import FAILURES_SCHEMA, SCHEMA
from tts_batch.worker.finish import finish_clip
from tts_batch.worker.references import Tails
from tts_batch.worker.row_maker import check_result, is_device_broken, own_arrays

GOOD = SpeechResult("a", np.ones(1_920, np.float32), 24_000, np.zeros((1, 16), np.int64), 1, "stop", True)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("audio", [0.0, 0.1], "audio is list, not a float32 array"),
        ("audio", np.zeros(9), "audio is float64"),
        ("codes", np.zeros(16), "codes are not an integer array"),
        ("codes", [[1] * 16], "codes are not an integer array"),
        ("codes", np.zeros((12, 8), np.int64), "codes are not an integer array"),
        ("codes", np.full((12, 16), -1), "codes are not all from 0 to 32767"),
        ("codes", np.full((12, 16), 32_768), "codes are not all from 0 to 32767"),
        ("sample_rate", "24000", "sample_rate is '24000', not a whole number"),
        ("num_frames", None, "num_frames is None"),
        ("finish_reason", None, "finish_reason is None"),
        ("num_frames", -1, "num_frames is -1, not a whole number from 0"),
        ("num_frames", 2**31, "num_frames is 2147483648, not a whole number from 0"),
        ("sample_rate", 2**31, "sample_rate is 2147483648"),
        ("eos", None, "eos is None, not a bool"),
        ("reason", 7, "reason is 7, not a string or None"),
        ("error", ValueError("a"), "error is ValueError('a'), not a string or None"),
        ("effective", None, "effective is None, not a mapping"),
        ("effective", {"language": 5}, "effective['language'] is 5, not a string or None"),
    ],
)
def test_a_field_of_another_type_becomes_an_error_of_the_request(field: str, value: Any, words: str) -> None:
    checked = check_result(replace(GOOD, **{field: value}))
    assert (checked.request_id, checked.finish_reason, checked.reason) == ("a", "error", "engine_error")
    assert words in str(checked.error)
    assert checked.audio is None


def test_a_result_that_keeps_to_the_contract_is_taken_as_it_is() -> None:
    assert check_result(GOOD) is GOOD
    silent = replace(GOOD, audio=None, codes=None, sample_rate=np.int64(8_000))  # type: ignore[arg-type]
    assert check_result(silent) is silent


def test_what_is_sent_on_is_plain() -> None:
    """Mappings that cannot be pickled, and figures that a clip does not need."""
    odd = replace(GOOD, effective=MappingProxyType({"language": "english"}), metrics={"lock": threading.Lock()})  # type: ignore[dict-item]
    own = pickle.loads(pickle.dumps(own_arrays(check_result(odd))))
    assert own.effective == {"language": "english"}


SAMPLES = st.floats(-1e6, 1e6, width=32) | st.sampled_from([np.nan, np.inf])
JUNK = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.builds(object)
RESULTS = st.builds(
    SpeechResult,
    request_id=st.just("a"),
    audio=st.sampled_from([None, np.zeros(0, np.float32), np.ones((2, 3), np.float32), np.float32(1.0).reshape(())])
    | hnp.arrays(np.float32, st.integers(1, 3_000), elements=SAMPLES, fill=SAMPLES)
    | JUNK,
    sample_rate=st.sampled_from([24_000, 8_000, 1, np.int16(16_000)]) | JUNK,
    codes=hnp.arrays(st.sampled_from([np.int64, np.int16, np.uint8]), st.tuples(st.integers(0, 5), st.just(16)))
    | hnp.arrays(np.int64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
    | JUNK,
    num_frames=st.integers(0, 60) | JUNK,
    finish_reason=st.sampled_from(["stop", "length", "loop", "error", "cancelled"]) | JUNK,
    eos=st.booleans() | JUNK,
    reason=st.sampled_from([None, "ref_silent"]) | JUNK,
    error=st.none() | st.text() | JUNK,
    effective=st.dictionaries(st.sampled_from(["language", "speaker", "instruct"]), st.text(max_size=3) | JUNK) | JUNK,
    metrics=st.dictionaries(st.text(max_size=3), JUNK) | JUNK,
)


@settings(max_examples=300)
@given(RESULTS, st.sampled_from([None, 0.1]), st.sampled_from(get_args(Format)))
def test_whatever_a_result_holds_its_row_is_recorded(
    result: SpeechResult, margin_s: float | None, name: Format
) -> None:
    """It travels, is examined, encoded and journalled, and its record fits into the tables."""
    result = pickle.loads(pickle.dumps(own_arrays(check_result(result))))
    rules = ClipRules(trim_margin_s=margin_s, format=name, save_codes=True, keep_failed_audio=True)
    outcome = finish_clip(make_active(make_request("a"), result), rules, EngineLabels(), Tails()).outcome
    assert outcome is not None
    recorded = Outcome.from_line(outcome.to_line())
    assert (recorded.status == "ok") == (recorded.reason is None) == (recorded.audio is not None)
    for schema in (SCHEMA, FAILURES_SCHEMA):
        columns = [column for column in schema if hasattr(recorded, column.name) and column.name != "checks"]
        for column in columns:
            pa.array([getattr(recorded, column.name)], column.type)


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
