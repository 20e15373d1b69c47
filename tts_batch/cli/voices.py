"""`tts-batch voices`: the speakers and languages that a table may name."""

from __future__ import annotations

import json

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
    if model is None:
        from tts_batch.dataset.languages import LANGUAGES
        from tts_batch.dataset.speakers import PRESET_SPEAKERS

        name, speakers, dialects, languages = None, sorted(PRESET_SPEAKERS), _DIALECTS, ["auto", *LANGUAGES]
    else:
        from tts_batch.plan.models import find_checkpoint

        checkpoint = find_checkpoint(model)
        name, config = checkpoint.name, checkpoint.config
        speakers, languages = list(config.speakers), list(config.supported_languages)
        dialects = {speaker: dialect for speaker, dialect in config.dialects.items() if isinstance(dialect, str)}
    described = [_describe_speaker(speaker, dialects, languages) for speaker in speakers]
    if as_json:
        click.echo(json.dumps({"model": name, "speakers": described, "languages": languages}, indent=2))
        return
    for speaker in described:
        click.echo(f"{speaker['name']:<12} {speaker['language'] or '':<10} {speaker['dialect'] or ''}".rstrip())
    click.echo(f"\nlanguages: {', '.join(languages)}")


def _describe_speaker(name: str, dialects: dict[str, str], languages: list[str]) -> dict[str, str | None]:
    """A speaker's native language and dialect; None where the model does not have it."""
    native = _NATIVE.get(name)
    dialect = dialects.get(name) if "chinese" in languages else None
    return {"name": name, "language": native if native in languages else None, "dialect": dialect}
