"""What is said of a clip, and how JSON says what it has no word for."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_batch.export.columns import KEPT, exported_schema, json_features, json_line
from tts_batch.store.schema import SCHEMA


def test_the_table_s_columns_follow_those_of_the_manifest() -> None:
    schema = exported_schema(pa.schema([*SCHEMA, ("note", pa.int64()), ("input_id", pa.string())]))
    assert schema.names == [*KEPT, "note", "input_id"]
    assert "audio" not in schema.names and "source" not in schema.names


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=5), VALUES))
def test_a_line_is_one_line_for_every_reader(values: dict[str, object]) -> None:
    line = json_line(values)
    assert json.loads(line) == values
    assert line.endswith(b"\n") and len(line.decode().splitlines()) == 1


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, None),
        ([math.inf, 1.5], [None, 1.5]),
        (b"\x00\xff", "AP8="),
        (datetime(2020, 1, 2, tzinfo=UTC), "2020-01-02T00:00:00+00:00"),
        (Decimal("1.10"), "1.10"),
        ({"a": (1, 2)}, {"a": [1, 2]}),
    ],
)
def test_what_json_has_no_word_for(value: object, written: object) -> None:
    assert json.loads(json_line({"v": value})) == {"v": written}


def test_types_as_a_card_names_them() -> None:
    struct = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float32()))])
    schema = pa.schema([("s", struct), ("t", pa.timestamp("us")), ("l", pa.list_(struct)), ("n", pa.null())])
    assert json_features(schema) == [
        {"name": "s", "struct": [{"name": "a", "dtype": "int64"}, {"name": "b", "list": "float64"}]},
        {"name": "t", "dtype": "string"},
        {"name": "l", "list": [{"name": "a", "dtype": "int64"}, {"name": "b", "list": "float64"}]},
        {"name": "n", "dtype": "null"},
    ]
