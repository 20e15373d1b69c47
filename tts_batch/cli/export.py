"""`tts-batch export`: a run's clips as a dataset that other programs open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tts_batch.choices import EXPORT_FORMATS
from tts_batch.cli.options import json_option
from tts_batch.errors import ExitStatus

if TYPE_CHECKING:
    from tts_batch.export.job import ExportSummary


@click.command(short_help="Write a run's clips as a dataset of another format.")
@click.argument("run", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--to", "name", type=click.Choice(EXPORT_FORMATS), required=True, help="The format.")
@click.option("--out", "-o", required=True, metavar="DIR", type=click.Path(path_type=Path),
              help="The folder to write: new, empty, or with an interrupted export.")  # fmt: skip
@click.option("--shard-mb", type=click.IntRange(min=1), metavar="N", help="Audio in a shard (hf, webdataset). "
              "Default: 500.")  # fmt: skip
@click.option("--hard-link", is_flag=True, help="Hard-link clips instead of copying them.")
@click.option("--decode", is_flag=True, help="Convert clips that the format does not take to 16-bit wav.")
@click.option("--ref-audio", metavar="FILE", type=click.Path(path_type=Path), help="The reference of all rows "
              "(qwen-sft). Default: the clip whose length is nearest to 8 s.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in the folder.")
@json_option("Print what was exported to stdout, as JSON.")
def export(run: Path, name: str, out: Path, overwrite: bool, as_json: bool, **options: Any) -> ExitStatus:
    """Write the finished clips of the run in DIR as a dataset, in input order, without encoding them again.

    \b
    hf           Parquet with the audio inside: datasets.load_dataset(DIR), the Hub's viewer
    audiofolder  audio files and metadata.parquet: datasets.load_dataset(DIR)
    webdataset   shard-NNNNNN.tar of KEY.wav and KEY.json
    ljspeech     wavs/ and metadata.csv of NAME|text|text
    nemo         audio/ and manifest.jsonl
    qwen-sft     audio/, ref.wav and train_raw.jsonl for Qwen3-TTS's fine-tuning scripts

    Rows that failed, are pending or whose clip is gone are left out and counted; exit status 3 says that there are
    some. The same command again resumes an interrupted export.
    """
    from tts_batch.export.job import export_run
    from tts_batch.export.target import ExportOptions

    given = {option: value for option, value in options.items() if value is not None}
    try:
        summary = export_run(run, name, out, ExportOptions(**given), overwrite=overwrite)
    except KeyboardInterrupt:
        click.echo("Stopped. Run the same command again to resume.", err=True)
        return ExitStatus.STOPPED
    for remark in summary.remarks:
        click.echo(remark, err=True)
    click.echo(_describe_summary(summary), err=True)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    return summary.exit_status


def _describe_summary(summary: ExportSummary) -> str:
    from tts_batch.export.card import describe_left_out
    from tts_batch.store.storage import shown

    line = f"{shown(summary.out)}: {summary.exported} of {summary.rows} rows, {summary.audio_s:.0f} s of audio."
    return f"{line} Left out: {describe_left_out(summary.left_out)}." if summary.left_out else line
