"""`tts-batch voices`: the speakers and languages that a table may name."""

from __future__ import annotations

import json
from typing import Any

import click

from tts_batch.cli.options import json_option

# The released speakers' native languages; each speaks all ten.
_NATIVE = {
    "aiden": "english",
    "dylan": "chinese",
    "eric": "chinese",
    "ono_anna": "japanese",
    "ryan": "english",
    "serena": "chinese",
    "sohee": "korean",
    "uncle_fu": "chinese",
    "vivian": "chinese",
}
# Spoken when the row's language is Chinese or auto.
_DIALECTS = {"dylan": "beijing_dialect", "eric": "sichuan_dialect"}


@click.command()
@click.option("--model", help="A CustomVoice checkpoint. Default: the voices of the released ones.")
@json_option()
def voices(model: str | None, as_json: bool) -> None:
    """List the built-in speakers and the languages of a CustomVoice model.

    A Base model takes its voices from ref_audio, a VoiceDesign model from the descriptions in instruct.
    """
    facts = _released() if model is None else _of_checkpoint(model)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for speaker in facts["speakers"]:
        click.echo(f"{speaker['name']:<12} {speaker['language'] or '':<10} {speaker['dialect'] or ''}".rstrip())
    click.echo(f"\nlanguages: {', '.join(facts['languages'])}")


def _released() -> dict[str, Any]:
    from tts_batch.dataset.languages import LANGUAGES
    from tts_batch.dataset.speakers import PRESET_SPEAKERS

    return _facts(None, sorted(PRESET_SPEAKERS), _DIALECTS, ["auto", *LANGUAGES])


def _of_checkpoint(model: str) -> dict[str, Any]:
    from tts_batch.plan.models import find_checkpoint

    checkpoint = find_checkpoint(model)
    dialects = {name: dialect for name, dialect in checkpoint.config.dialects.items() if isinstance(dialect, str)}
    return _facts(checkpoint.name, checkpoint.speakers(), dialects, checkpoint.supported_languages())


def _facts(model: str | None, speakers: list[str], dialects: dict[str, str], languages: list[str]) -> dict[str, Any]:
    return {
        "model": model,
        "speakers": [_speaker(name, dialects, languages) for name in speakers],
        "languages": languages,
    }


def _speaker(name: str, dialects: dict[str, str], languages: list[str]) -> dict[str, str | None]:
    """A speaker's native language and dialect; None where the model does not have it."""
    native = _NATIVE.get(name)
    dialect = dialects.get(name) if "chinese" in languages else None
    return {"name": name, "language": native if native in languages else None, "dialect": dialect}
