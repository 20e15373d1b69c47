"""The exported columns of a clip: the manifest's that matter outside the run, and the input's own."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tts_batch.store.schema import SCHEMA

KEPT = (
    "id", "text", "task", "language", "speaker", "instruct", "ref_audio", "ref_text", "effective_language",
    "effective_speaker", "duration_s", "sample_rate", "num_frames", "peak", "rms_dbfs", "clipped_samples", "seed",
    "model", "model_revision", "fingerprint",
)  # fmt: skip
"""The exported ones of the manifest's fixed columns; the others describe the run folder, or how the run went."""

# Line ends for some readers, beside the control characters, which JSON escapes anyway.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def exported_schema(manifest: pa.Schema) -> pa.Schema:
    """Return the columns to export of a manifest: the kept ones, then the input's other columns."""
    names = [*KEPT, *(name for name in manifest.names if name not in SCHEMA.names)]
    return pa.schema([manifest.field(name) for name in names])


def json_line(values: Mapping[str, Any]) -> bytes:
    """Return one JSON object and a newline, in UTF-8, without any other line end in it.

    Types that JSON lacks are written as text (times, decimals), base64 (bytes) or null (NaN, infinities).
    """
    line = json.dumps(_plain(values), ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS)
    return line.encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def json_features(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the types that `json_line` gives these columns, as the YAML of a dataset card names them."""
    return [{"name": column.name, **_json_feature(column.type)} for column in schema]


def _json_feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"struct": json_features(pa.schema(list(kind)))}
    if pa.types.is_list(kind):
        feature = _json_feature(kind.value_type)
        return {"list": feature.get("dtype") or feature.get("struct") or feature}
    if pa.types.is_floating(kind):
        return {"dtype": "float64"}
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return {"dtype": str(kind)}
    return {"dtype": "string"}
