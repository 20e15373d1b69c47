"""Recipes, and how a command's JobConfig comes from one and from its options: the command line wins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tts_batch.errors import UsageError

if TYPE_CHECKING:
    from tts_batch.config import JobConfig


recipe_option = click.option("--recipe", metavar="FILE", help="Read options from a YAML file; the command line wins.")


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
