"""From a recipe and the command line's options to a checked JobConfig: the command line wins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_batch.errors import UsageError

if TYPE_CHECKING:
    from tts_batch.config import JobConfig


def read_recipe(path: Path) -> dict[str, Any]:
    """A YAML file with JobConfig's keys. Its `data` and `audio_root` are relative to the file, like a table's paths.

    Raises UsageError when the file cannot be read or is no mapping; JobConfig checks the keys.
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
        recipe["data"] = [_beside(path, table) for table in recipe["data"]]
    if "audio_root" in recipe:
        recipe["audio_root"] = _beside(path, recipe["audio_root"])
    return recipe


def _beside(recipe: Path, path: Any) -> Any:
    return str(recipe.parent / path) if isinstance(path, str) and "://" not in path else path


def read_job(options: Mapping[str, Any], *, recipe: str | None, **defaults: Any) -> JobConfig:
    """The job of a command: `defaults`, over them the recipe's keys, over both the options that were given."""
    from tts_batch.config import build_config

    given = {name: value for name, value in options.items() if value not in (None, ())}
    keys = read_recipe(Path(recipe)) if recipe else {}
    return build_config({**defaults, **keys, **given})
