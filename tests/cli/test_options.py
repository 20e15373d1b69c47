"""Every key of JobConfig can be said on the command line, and what was not said is not passed on."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import click
import pytest

from tts_batch.cli.options import SectionCommand, job_options
from tts_batch.config import JobConfig


@click.command(cls=SectionCommand)
@job_options
def probe(**options: Any) -> dict[str, Any]:
    return options


def parse(*args: str) -> dict[str, Any]:
    normalize = {"token_normalize_func": lambda token: token.replace("_", "-")}
    options = probe.main(args, standalone_mode=False, **normalize)
    return {name: value for name, value in options.items() if value not in (None, ())}


def test_every_key_has_an_option() -> None:
    assert {param.name for param in probe.params} - {"recipe"} == set(JobConfig.model_fields)


@pytest.mark.parametrize("param", [p for p in probe.params if isinstance(p.type, click.Choice)], ids=lambda p: p.name)
def test_choices_are_those_of_the_configuration(param: click.Parameter) -> None:
    allowed: set[str] = set()
    pending = [JobConfig.model_fields[param.name].annotation]
    while pending:
        annotation = pending.pop()
        allowed |= {value for value in get_args(annotation) if isinstance(value, str)}
        pending += [inner for inner in get_args(annotation) if get_origin(inner)]
    assert set(param.type.choices) == allowed


def test_nothing_given_is_nothing_passed() -> None:
    assert parse() == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["a.csv", "b.csv"], {"data": ("a.csv", "b.csv")}),
        (["--no-cuda-graph"], {"cuda_graph": False}),
        (["--eager"], {"eager": True}),
        (["--greedy"], {"greedy": True}),
        (["--streaming"], {"non_streaming": False}),
        (["--non-streaming"], {"non_streaming": True}),
        (["--gpus", "0,2"], {"gpus": (0, 2)}),
        (["--map", "text=line", "--map", "speaker="], {"map": {"text": "line", "speaker": ""}}),
        (["--max_frames", "12", "--top_k=3"], {"max_frames": 12, "top_k": 3}),
        (["-o", "wavs"], {"out": "wavs"}),
        (["--split-text", "120", "--split-pause-s", "0.5"], {"split_text": 120, "split_pause_s": 0.5}),
        (["--trim", "--trim-margin-s=0"], {"trim": True, "trim_margin_s": 0.0}),
    ],
)
def test_options_arrive(args: list[str], expected: dict[str, Any]) -> None:
    assert parse(*args) == expected


@pytest.mark.parametrize("args", [["--map", "text"], ["--map", "=x"], ["--gpus", "a"], ["--top-k", "many"]])
def test_malformed_values_are_usage_errors(args: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(*args)


def test_help_has_sections(capsys: pytest.CaptureFixture[str]) -> None:
    probe.main(["--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert shown.index("Model and engine:") < shown.index("--engine") < shown.index("Run and output:")
