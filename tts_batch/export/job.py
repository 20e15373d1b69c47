"""The main path of an export: find the finished clips, open the folder, write the format, sum up."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tts_batch.dataset.audio import content_key
from tts_batch.errors import CannotContinueError, ExitStatus, RowError, UsageError
from tts_batch.export import folders, shards
from tts_batch.export.clips import FinishedClips
from tts_batch.export.target import ExportOptions, Target, clear, read_state
from tts_batch.records import RefAudio
from tts_batch.store.clips import SUFFIXES
from tts_batch.store.storage import shown, storage_of, working_folder


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """One of the formats of `--to`."""

    write: Callable[[FinishedClips, Target], list[str]]  # returns remarks for the user
    files: str  # a regular expression of the paths of its files in its folder
    options: Collection[str]  # the fields of ExportOptions that it supports
    clip_suffixes: Collection[str] = SUFFIXES  # of clips that it stores as they are


_NUMBERED = rf"audio/\d{{4,}}/\d{{9,}}({'|'.join(map(re.escape, SUFFIXES))})"
_AS_IN_RUN = r"audio/[0-9a-f]{2}/[^/]+\.(wav|flac)"
_FILES, _WAV_FLAC = ("hard_link", "decode"), (".wav", ".flac")

FORMATS = {
    "hf": ExportFormat(shards.write_hf, r"data/train-\d+-of-\d+\.parquet|README\.md", ("shard_mb",)),
    "audiofolder": ExportFormat(
        folders.write_audiofolder, _NUMBERED + r"|metadata\.parquet|README\.md", ("hard_link",)
    ),
    "webdataset": ExportFormat(shards.write_webdataset, r"shard-\d+\.tar|dataset_info\.json|README\.md", ("shard_mb",)),
    "ljspeech": ExportFormat(folders.write_ljspeech, r"wavs/[^/]+\.wav|metadata\.csv", _FILES, (".wav",)),
    "nemo": ExportFormat(folders.write_nemo, _AS_IN_RUN + r"|manifest\.jsonl", _FILES, _WAV_FLAC),
    "qwen-sft": ExportFormat(
        folders.write_qwen_sft, _AS_IN_RUN + r"|ref\.wav|train_raw\.jsonl", (*_FILES, "ref_audio"), _WAV_FLAC
    ),
}


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """How an export ended, and what is in it."""

    format: str
    out: Path
    rows: int  # of the run
    exported: int
    left_out: dict[str, int]  # reason → rows
    audio_s: float
    remarks: tuple[str, ...]

    @property
    def exit_status(self) -> ExitStatus:
        """SOME_FAILED when a row is not there."""
        return ExitStatus.SOME_FAILED if self.left_out else ExitStatus.OK

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "out": shown(self.out), "exit_status": int(self.exit_status)}


def export_run(
    run: Path, name: str, out: Path, options: ExportOptions | None = None, *, overwrite: bool = False
) -> ExportSummary:
    """Write the finished clips of the run folder `run` to `out` in the format `name`, or continue such an export.

    `overwrite` removes an earlier export from `out` first. Raises UsageError and CannotContinueError with a sentence
    for the user; every file that was written by then is complete, and the same call continues.
    """
    options = options or ExportOptions()
    _check_options(name, options)
    if out.resolve().is_relative_to(run.resolve()):
        raise UsageError(f"{out} lies in the run folder {run}, which holds only the run: choose another --out.")
    with working_folder(run, tables=True) as source, working_folder(out, journal=False) as target:
        summary = _export(source, name, target, options, overwrite)
        remarks = tuple(remark.replace(str(source), shown(run)) for remark in summary.remarks)
        return replace(summary, out=out, remarks=remarks)


def _export(run: Path, name: str, out: Path, options: ExportOptions, overwrite: bool) -> ExportSummary:
    clips = FinishedClips(run)
    _check_clips(name, clips, options)
    facts = {"format": name, "clips": clips.digest, "options": _output_options(name, options)}
    try:
        with storage_of(out).lock():
            if overwrite:
                _clear(out)
            target = Target(out, facts, options, FORMATS[name].clip_suffixes)
            remarks = [*clips.remarks, *FORMATS[name].write(clips, target)]
            summary = ExportSummary(
                name, out, clips.num_rows, len(clips), dict(clips.left_out), clips.audio_s, tuple(remarks)
            )
            target.finish(rows=summary.rows, exported=summary.exported, left_out=summary.left_out)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotContinueError(f"The disk of {out} is full. Make room; the same command continues.") from None
        raise
    return summary


def _check_options(name: str, options: ExportOptions) -> None:
    for field in fields(options):
        if getattr(options, field.name) != field.default and field.name not in FORMATS[name].options:
            others = " and ".join(other for other, each in FORMATS.items() if field.name in each.options)
            option = field.name.replace("_", "-")
            raise UsageError(f"--{option} is for --to {others}: leave it out with --to {name}.")


def _check_clips(name: str, clips: FinishedClips, options: ExportOptions) -> None:
    if not len(clips):
        raise UsageError(f"{clips.run} has no clips to export: none of its {clips.num_rows} rows is ok.")
    taken = FORMATS[name].clip_suffixes
    other = sorted(set(clips.suffixes) - set(taken))
    if other and not options.decode:
        raise UsageError(
            f"{name} takes {' and '.join(sorted(taken))}, and {clips.run} holds {' and '.join(other)} "
            "clips. --decode writes those as 16-bit wav (mp3 and opus stay lossy); hf, audiofolder and webdataset take "
            "them as they are; `synth --format wav` makes wav clips."
        )


def _output_options(name: str, options: ExportOptions) -> dict[str, Any]:
    """Return the options that decide what is written: an interrupted export continues only with equal ones."""
    chosen = {field: getattr(options, field) for field in sorted(FORMATS[name].options) if field != "hard_link"}
    if options.ref_audio is not None:
        try:
            chosen["ref_audio"] = content_key(
                RefAudio(path=str(options.ref_audio.resolve()), label=str(options.ref_audio))
            )
        except RowError as error:
            raise UsageError(f"--ref-audio cannot be used: {error}") from None
    return chosen


def _clear(out: Path) -> None:
    """Remove an earlier export. A folder with other files is left as it is, and `Target` refuses it."""
    before = read_state(out)
    if before is not None and before.get("format") in FORMATS:
        clear(out, re.compile(FORMATS[before["format"]].files))
