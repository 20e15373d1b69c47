"""Every key of JobConfig is an option of the command line, and what was not given is not passed on."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tts_batch.choices import FORMATS
from tts_batch.cli.options import JobCommand, job_params
from tts_batch.config import JobConfig
from tts_batch.engine.choices import PROFILES


@click.command(cls=JobCommand)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def probe(as_json: bool, **options: Any) -> dict[str, Any]:
    return options


@click.command(cls=JobCommand, keys=("seed", "format"))
def part(**options: Any) -> dict[str, Any]:
    return options


def parse(*args: str, command: click.Command = probe) -> dict[str, Any]:
    normalize = {"token_normalize_func": lambda token: token.replace("_", "-")}
    options = command.main(args, standalone_mode=False, **normalize)
    return {name: value for name, value in options.items() if value not in (None, ())}


def help_of(command: click.Command, capsys: pytest.CaptureFixture[str]) -> str:
    command.main(["--help"], standalone_mode=False, terminal_width=200)
    return capsys.readouterr().out


def test_every_key_has_an_option() -> None:
    assert list(job_params()) == list(JobConfig.model_fields)
    assert all(param.name == name for name, param in job_params().items())


def test_choices_are_those_of_the_type() -> None:
    choices = {name: param.type.choices for name, param in job_params().items() if isinstance(param.type, click.Choice)}
    assert (choices["format"], choices["profile"]) == (FORMATS, PROFILES)
    assert len(choices) == 9


def test_nothing_given_is_nothing_passed() -> None:
    assert parse() == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["a.csv", "b.csv"], {"data": ("a.csv", "b.csv")}),
        (["--no-cuda-graph"], {"cuda_graph": False}),
        (["--eager"], {"eager": True}),
        (["--greedy"], {"greedy": True}),
        (["--x-vector-only"], {"x_vector_only": True}),
        (["--streaming"], {"non_streaming": False}),
        (["--non-streaming"], {"non_streaming": True}),
        (["--gpus", "0,2"], {"gpus": (0, 2)}),
        (["--map", "text=line", "--map", "speaker="], {"map": {"text": "line", "speaker": ""}}),
        (["--max_frames", "12", "--top_k=3"], {"max_frames": 12, "top_k": 3}),
        (["-o", "wavs"], {"out": "wavs"}),
        (["--redo", "a", "--redo", "b"], {"redo": ("a", "b")}),
        (["--split-text", "120", "--split-pause-s", "0.5"], {"split_text": 120, "split_pause_s": 0.5}),
        (["--trim", "--trim-margin-s=0"], {"trim": True, "trim_margin_s": 0.0}),
        (
            ["--check", "long_silence_s=0", "--check", "ref-correlation=off"],
            {"checks": {"long_silence_s": 0.0, "ref_correlation": None}},
        ),
    ],
)
def test_options_arrive(args: list[str], expected: dict[str, Any]) -> None:
    assert parse(*args) == expected


@pytest.mark.parametrize(
    "args",
    [
        ["--map", "text"],
        ["--map", "=x"],
        ["--gpus", "a"],
        ["--top-k", "many"],
        ["--check", "long_silence_s=none"],
        ["--cuda-graph"],
        ["--format", "aiff"],
    ],
)
def test_malformed_values_are_usage_errors(args: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(*args)


def test_help_has_sections_and_the_descriptions_of_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(probe, capsys)
    assert shown.index("Model and engine:") < shown.index("--engine") < shown.index("Run and output:")
    assert shown.index("Run and output:") < shown.index("-o, --out DIR") < shown.index("Other options:")
    flat = " ".join(shown.split())
    assert f"--seed N {JobConfig.model_fields['seed'].description} Default: 0." in flat
    assert "--no-cuda-graph Do not capture CUDA graphs." in flat
    assert all((field.description or "")[1:-1] in flat for name, field in JobConfig.model_fields.items()
               if name != "data")  # fmt: skip


def test_a_command_may_take_some_keys_of_a_known_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("--seed", "3", "--format", "flac", command=part) == {"seed": 3, "format": "flac"}
    with pytest.raises(click.NoSuchOption):
        parse("--greedy", command=part)
    assert "Default" not in help_of(part, capsys)
