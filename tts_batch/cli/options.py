"""The options of a job, one for every key of JobConfig, shown in sections by --help.

None of them has a default here: what was not given is not passed on, so that a recipe and then JobConfig decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class SectionOption(click.Option):
    """An option that --help shows under a heading."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionCommand(click.Command):
    """A command whose --help groups its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        for option in sorted(options, key=lambda option: not isinstance(option, SectionOption)):
            record = option.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(option, "section", "Other options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    if any(value.find("=") < 1 for value in values):
        raise click.BadParameter("use NAME=COLUMN, for example text=transcript.", ctx, param)
    return dict(value.partition("=")[::2] for value in values) or None


def gpu_positions(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Read "0,2"."""
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter("use positions joined by commas, for example 0,1.", ctx, param) from None


def _limits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float | None] | None:
    limits: dict[str, float | None] = {}
    for value in values:
        name, _, limit = value.partition("=")
        try:
            limits[name.replace("-", "_")] = None if limit == "off" else float(limit)
        except ValueError:
            raise click.BadParameter("use NAME=LIMIT, for example long_silence_s=3, or NAME=off.", ctx, param) from None
    return limits or None


def _option(section: str, *declarations: str, **attributes: Any) -> Callable[[Any], Any]:
    return click.option(*declarations, cls=SectionOption, section=section, **attributes)


def _flag(section: str, *declarations: str, value: bool = True, **attributes: Any) -> Callable[[Any], Any]:
    return _option(section, *declarations, is_flag=True, flag_value=value, type=bool, default=None, **attributes)


def _choice(*values: str) -> click.Choice[str]:
    return click.Choice(values)


MODEL = "Model and engine"
SAMPLING = "Sampling (default: the checkpoint's generation_config.json)"
TABLE = "Reading the table"
OUTPUT = "Run and output"

# One that is hidden waits for its feature: until then the run or the engine refuses it.
_JOB_OPTIONS = (
    click.argument("data", nargs=-1, metavar="TABLE..."),
    _option(MODEL, "--model", help="Checkpoint folder, hub id, 'tiny' or 'tiny-random'. Default: what fits the table."),
    _option(MODEL, "--model-revision", metavar="REVISION", help="Hub revision of --model."),
    _option(MODEL, "--engine", metavar="NAME", help="'native' (default) or 'package.module:factory'."),
    _option(MODEL, "--runner", type=_choice("v1", "v2"), help="Default: what the platform runs."),
    _option(MODEL, "--device", type=_choice("auto", "cpu", "cuda", "xpu", "npu", "musa"), help="Default: auto."),
    _option(MODEL, "--dtype", type=_choice("auto", "float32", "bfloat16"), help="Default: auto."),
    _option(MODEL, "--gpus", metavar="I,J,...", callback=gpu_positions, help="Positions among the visible devices."),
    _option(
        MODEL,
        "--profile",
        type=_choice("basic", "b2", "b4", "throughput"),
        help="The engine's sizes. Default: throughput for runner v2 on CUDA, else basic.",
    ),
    _option(
        MODEL,
        "--placement",
        type=_choice("colocated", "split"),
        help="Each worker on one device (default), or on two: the codec's decoder on a second.",
    ),
    _flag(MODEL, "--no-cuda-graph", "cuda_graph", value=False, help="No graph capture."),
    _flag(MODEL, "--eager", help="Neither graph capture nor Triton kernels: plain torch."),
    _option(MODEL, "--max-num-seqs", type=int, metavar="N", help="Rows decoded together."),
    _option(
        MODEL,
        "--code2wav-mode",
        type=_choice("utterance", "chunked"),
        help="Whole clips (default), or chunks while codes are made.",
    ),
    _option(
        MODEL, "--stall-timeout", type=float, metavar="S", help="How long the engine may stand still. Default: 30 s."
    ),
    _option(MODEL, "--launcher", type=_choice("local", "ray"), hidden=True, help="Default: local."),
    _flag(SAMPLING, "--greedy", help="No sampling, in talker and code predictor."),
    _option(SAMPLING, "--temperature", type=float, metavar="X"),
    _option(SAMPLING, "--top-k", type=int, metavar="N"),
    _option(SAMPLING, "--top-p", type=float, metavar="X"),
    _option(SAMPLING, "--repetition-penalty", type=float, metavar="X"),
    _option(SAMPLING, "--subtalker-temperature", type=float, metavar="X"),
    _option(SAMPLING, "--subtalker-top-k", type=int, metavar="N"),
    _option(SAMPLING, "--subtalker-top-p", type=float, metavar="X"),
    _option(SAMPLING, "--min-new-tokens", type=int, metavar="N", help="No end before so many tokens."),
    _option(SAMPLING, "--max-frames", type=int, metavar="N", help="Budget of every row, 12.5 frames a second."),
    _option(SAMPLING, "--loop-frames", type=int, metavar="N", help="End a take that loops for so long. 0: never."),
    _option(SAMPLING, "--seed", type=int, metavar="N", help="Seed of the run. Default: 0."),
    _option(SAMPLING, "--attempts", type=int, metavar="N", help="Tries a row gets. Default: 1."),
    _flag(SAMPLING, "--retry-changes-seed", help="Further attempts may leave a row's own seed."),
    _option(SAMPLING, "--takes", type=int, metavar="N", help="Clips to make of each row. Default: 1."),
    _option(SAMPLING, "--non-streaming/--streaming", default=None, help="Prompt layout. Default: the task's own."),
    _flag(SAMPLING, "--x-vector-only", help="Clone from the voice vector alone."),
    _option(TABLE, "--map", multiple=True, metavar="NAME=COLUMN", callback=_pairs, help="Read NAME from COLUMN."),
    _option(TABLE, "--encoding", metavar="NAME", help="Of text tables, as cp1252. Default: by their mark, else UTF-8."),
    _option(TABLE, "--language", metavar="NAME", help="For rows without one."),
    _option(TABLE, "--speaker", metavar="NAME", help="For rows without one."),
    _option(TABLE, "--instruct", metavar="TEXT", help="For rows without one."),
    _option(TABLE, "--split-text", type=int, metavar="N", help="Speak longer texts in pieces of N characters at most."),
    _option(TABLE, "--split-pause-s", type=float, metavar="S", help="Silence between two pieces. Default: 0.3 s."),
    _option(TABLE, "--limit", type=int, metavar="N", help="Only the first N rows."),
    _flag(TABLE, "--strict", help="Unknown columns are errors."),
    _option(TABLE, "--audio-root", metavar="DIR", help="The only folder that ref_audio paths may name."),
    _flag(TABLE, "--allow-url", help="ref_audio may be an http(s) URL; each is fetched once."),
    _option(OUTPUT, "--out", "-o", metavar="DIR", help="The run folder."),
    _option(
        OUTPUT,
        "--format",
        type=_choice("wav", "wav24", "wavf32", "flac", "mp3", "opus"),
        help="Audio format: wav of 16 bits (default), 24 bits or floats, flac, mp3, Ogg Opus.",
    ),
    _flag(OUTPUT, "--trim", help="Take silence off the edges of clips."),
    _option(OUTPUT, "--trim-margin-s", type=float, metavar="S", help="What --trim leaves of it. Default: 0.1 s."),
    _option(
        OUTPUT,
        "--check",
        "checks",
        multiple=True,
        metavar="NAME=LIMIT",
        callback=_limits,
        help="Set the limit of an output check, or 'off': too_long_factor, too_long_floor_s, too_short_factor, "
        "too_short_floor_s, silent_peak_dbfs, long_silence_s, noise_flatness, ref_correlation.",
    ),
    _option(OUTPUT, "--row-time-limit", type=float, metavar="S", help="Seconds a row may take, all attempts together."),
    _flag(OUTPUT, "--save-codes", help="Keep codec codes (.npy) beside the audio."),
    _flag(OUTPUT, "--keep-failed-audio", help="Keep audio of failed attempts."),
    _flag(OUTPUT, "--allow-mixed", help="Resume with settings that change the sound."),
    _flag(OUTPUT, "--overwrite", help="Start the run folder afresh."),
    _option(OUTPUT, "--redo", multiple=True, metavar="ID", help="Make this row again, with another draw."),
    _option(OUTPUT, "--shard", metavar="I/N", help="Only part I of N of the rows; parts may run side by side."),
    _option(
        OUTPUT,
        "--progress",
        type=_choice("auto", "bar", "plain", "none"),
        help="Default: auto. none: errors and the last line.",
    ),
    _option(OUTPUT, "--recipe", metavar="FILE", help="Read options from a YAML file; the command line wins."),
)


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the table argument, an option for every key of JobConfig, and --recipe."""
    for option in reversed(_JOB_OPTIONS):
        function = option(function)
    return function
