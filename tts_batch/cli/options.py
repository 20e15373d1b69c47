"""Click options made from JobConfig, and the job that they and a recipe describe.

Their names, types, choices and help texts are those of JobConfig's fields. None of them has a default of its own: an
option that was not given is not passed on, so that a recipe and then JobConfig decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import click

from tts_batch.errors import UsageError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from tts_batch.config import JobConfig

recipe_option = click.option("--recipe", metavar="FILE", help="Read options from a YAML file; the command line wins.")


def json_option(text: str = "As JSON.") -> Callable[[Any], Any]:
    """Return the flag of a command whose data scripts may read."""
    return click.option("--json", "as_json", is_flag=True, help=text)


class JobCommand(click.Command):
    """A command with an option for each key of JobConfig, by section in --help.

    With `keys` it has only these, for a job whose other settings are known; they have no defaults to show. The options
    are made when the command is used, so that `tts-batch --help` does not load pydantic.
    """

    def __init__(self, *args: Any, keys: Collection[str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keys = keys

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = job_params(show_defaults=self._keys is None)
        keys = params if self._keys is None else self._keys
        return [*(params[key] for key in keys), *super().get_params(ctx)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tts_batch.config import JobConfig

        fields: Any = JobConfig.model_fields
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                of_job = fields[param.name].json_schema_extra["section"] if param.name in fields else "Other options"
                title = of_job if self._keys is None else "Options"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


@cache
def job_params(*, show_defaults: bool = True) -> dict[str, click.Parameter]:
    """Return the click parameter of each key of JobConfig. Whether or not its help shows a default, it has none."""
    from tts_batch.config import JobConfig

    return {name: _param(name, field, show_defaults) for name, field in JobConfig.model_fields.items()}


def _param(name: str, field: FieldInfo, show_default: bool) -> click.Parameter:
    shown: Any = field.json_schema_extra  # see config.py
    if "section" not in shown:
        return click.Argument([name], nargs=-1, metavar=shown["metavar"])
    flags = shown.get("flags") or [("--no-" if field.default is True else "--") + name.replace("_", "-")]
    attributes = _attributes(field.annotation)
    if attributes.get("type") is bool and "/" not in flags[0]:
        attributes |= {"is_flag": True, "flag_value": field.default is not True}
    if shown.get("metavar"):
        attributes["metavar"] = shown["metavar"]
    return click.Option(
        [*flags, name],
        help=_help(field, show_default),
        hidden=shown.get("hidden", False),
        default=None,
        **attributes,
    )


def _attributes(annotation: Any) -> dict[str, Any]:
    """How click reads a value of this type."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, UnionType):  # Annotated[type, limits], type | None
        return _attributes(args[0])
    if origin is Literal:
        return {"type": click.Choice(args)}
    if origin is dict:
        return {"multiple": True, "callback": _name_value_pairs if args[1] is str else _limits}
    if origin is tuple:
        return {"callback": _positions} if args[0] is int else {"multiple": True}
    if annotation is bool:
        return {"type": bool}
    return {"type": annotation, "metavar": _NUMBERS[annotation]} if annotation in _NUMBERS else {"type": str}


_NUMBERS = {int: "N", float: "X"}


def _help(field: FieldInfo, show_default: bool) -> str:
    """The description, which says itself what None means, and any other default that says something."""
    text, default = field.description or "", field.default
    if not show_default:
        return text.partition(" Default: ")[0]
    if default is True:
        return f"Do not {text[0].lower()}{text[1:]}"
    if isinstance(default, bool) or not isinstance(default, str | int | float):
        return text
    return f"{text} Default: {default:g}." if isinstance(default, float) else f"{text} Default: {default}."


def _name_value_pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    if any(value.find("=") < 1 for value in values):
        example = "text=transcript" if param.name == "map" else "gpu_memory_utilization=0.2"
        raise click.BadParameter(f"use {param.metavar}, for example {example}.", ctx, param)
    return dict(value.partition("=")[::2] for value in values) or None


def _positions(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
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


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a YAML file of JobConfig's keys. Its `data` and `audio_root` are relative to the file.

    Raises UsageError when the file cannot be read or is not a mapping; JobConfig checks the keys.
    """
    import yaml

    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"The recipe {path} cannot be read: {error}") from error
    if not isinstance(recipe, dict):
        raise UsageError(f"The recipe {path} must be a mapping of option names to values, for example 'model: tiny'.")
    if isinstance(recipe.get("data"), str):
        recipe["data"] = [recipe["data"]]
    if isinstance(recipe.get("data"), list):
        recipe["data"] = [_relative_to(path, table) for table in recipe["data"]]
    if "audio_root" in recipe:
        recipe["audio_root"] = _relative_to(path, recipe["audio_root"])
    return recipe


def _relative_to(recipe: Path, path: Any) -> Any:
    return str(recipe.parent / path) if isinstance(path, str) and "://" not in path else path


def read_job(options: Mapping[str, Any], *, recipe: str | None, **defaults: Any) -> JobConfig:
    """Return a command's job: the options that were given, else the recipe's keys, else `defaults`.

    Raises UsageError for what JobConfig does not allow.
    """
    from tts_batch.config import build_config

    given = {name: value for name, value in options.items() if value not in (None, ())}
    keys = read_recipe(Path(recipe)) if recipe else {}
    return build_config({**defaults, **keys, **given})
