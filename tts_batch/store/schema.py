"""The two tables that a run writes: their names and their fixed columns."""

from __future__ import annotations

import pyarrow as pa

MANIFEST, FAILURES = "manifest.parquet", "failures.parquet"

SCHEMA = pa.schema(
    [
        ("row_index", pa.int64()),
        ("id", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("audio", pa.string()),
        ("duration_s", pa.float64()),
        ("sample_rate", pa.int32()),
        ("num_frames", pa.int32()),
        ("max_frames", pa.int32()),
        ("finish_reason", pa.string()),
        ("eos", pa.bool_()),
        ("attempts", pa.int32()),
        ("seed", pa.int64()),
        ("attempt_seeds", pa.list_(pa.int64())),
        ("codes", pa.string()),
        ("source", pa.string()),
        ("text", pa.string()),
        ("task", pa.string()),
        ("language", pa.string()),
        ("speaker", pa.string()),
        ("instruct", pa.string()),
        ("ref_audio", pa.string()),
        ("ref_text", pa.string()),
        ("x_vector_only", pa.bool_()),
        ("non_streaming", pa.bool_()),
        ("effective_language", pa.string()),
        ("effective_speaker", pa.string()),
        ("instruct_applied", pa.bool_()),
        ("model", pa.string()),
        ("model_revision", pa.string()),
        ("engine", pa.string()),
        ("runner", pa.string()),
        ("dtype", pa.string()),
        ("fingerprint", pa.string()),
        ("peak", pa.float32()),
        ("rms_dbfs", pa.float32()),
        ("clipped_samples", pa.int64()),
        ("checks", pa.string()),  # JSON: check → result
        ("num_pieces", pa.int32()),
    ]
)
"""The fixed columns in the fixed order; the input's other columns follow."""

_ATTEMPT = pa.struct(
    [
        ("attempt", pa.int32()),
        ("seed", pa.int64()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("num_frames", pa.int32()),
        ("finish_reason", pa.string()),
        ("first_codes", pa.list_(pa.int32())),  # of the first codebook
        ("last_codes", pa.list_(pa.int32())),
        ("distinct_codes", pa.int32()),
        ("repeated_frames", pa.int32()),  # the longest run of frames that repeat earlier ones …
        ("repeat_lag", pa.int32()),  # … by this many frames
        ("head_silence_s", pa.float32()),
        ("inner_silence_s", pa.float32()),
        ("tail_silence_s", pa.float32()),
        ("flatness", pa.float32()),
        ("piece", pa.int32()),  # of a split text, from 1
    ]
)
FAILURES_SCHEMA = pa.schema([*SCHEMA, ("failed_attempts", pa.list_(_ATTEMPT))])
"""The columns of failures.parquet: the manifest's, and the record of each failed attempt."""
