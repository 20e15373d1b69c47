"""JobConfig says what is wrong with its input, and JobOptions mirrors it for type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

from tts_batch.config import JobConfig, JobOptions, build_config
from tts_batch.errors import UsageError

GIVEN = {"data": ["a.csv"], "out": "wavs"}


def as_keyword(annotation: Any) -> Any:
    """The type that a caller may pass for a field of this type: without its limits, and not only pydantic's own."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return as_keyword(args[0])
    if origin in (Union, UnionType):
        return reduce(or_, map(as_keyword, args))
    if origin is tuple:
        return Sequence[args[0]]
    if origin is dict:
        return Mapping[args]
    return str | PathLike[str] if annotation is Path else annotation


def test_keywords_are_the_fields() -> None:
    keywords = get_type_hints(JobOptions)
    fields = {name: field for name, field in JobConfig.model_fields.items() if name not in ("data", "out")}
    assert list(keywords) == list(fields)
    assert keywords == {name: as_keyword(field.annotation) for name, field in fields.items()}
    assert JobOptions.__required_keys__ == frozenset()


def test_every_field_is_described() -> None:
    for name, field in JobConfig.model_fields.items():
        assert field.description and field.description.rstrip().endswith("."), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 2}, "'top_p' cannot be 2: "),
        ({"max_num_seqs": 0}, "'max_num_seqs' cannot be 0: "),
        ({"split_text": 19}, "'split_text' cannot be 19: "),
        ({"trim": True, "trim_margin_s": 61}, "'trim_margin_s' cannot be 61: "),
        ({"seed": 2**63}, "'seed' cannot be"),
        ({"shard": "1"}, "'shard' cannot be '1'"),
        ({"format": "aiff"}, "'format' cannot be 'aiff': .*'wav24'"),
        ({"checks": {"loudness": 1}}, "'loudness' does not exist.*noise_flatness"),
        ({"checks": {"noise_flatness": "low"}}, "'noise_flatness' does not exist, or its limit is not a number"),
        ({"temprature": 1}, "no option 'temprature'; did you mean 'temperature'"),
        ({"split_pause_s": 1}, "'split_pause_s' changes nothing without 'split_text'"),
        ({"top_p": 2, "attempts": 0}, "'top_p' .* 'attempts' "),
    ],
)
def test_what_is_not_allowed_is_one_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_config(GIVEN | options)


def test_a_check_is_turned_off_by_none_and_not_by_0() -> None:
    checks = build_config(GIVEN | {"checks": {"noise_flatness": None, "long_silence_s": 0}}).checks
    assert checks == {"noise_flatness": None, "long_silence_s": 0.0}
