"""The main path of an export: find the finished clips, open the folder, write the format, sum up."""

from __future__ import annotations

import errno
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tts_batch.dataset.audio import content_key
from tts_batch.errors import CannotContinueError, ExitStatus, RowError, UsageError
from tts_batch.export.clips import FinishedClips
from tts_batch.export.formats import FORMATS, ExportFormat
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target, clear, read_state
from tts_batch.records import RefAudio
from tts_batch.store.lock import RunLock


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
        return {**asdict(self), "out": str(self.out), "exit_status": int(self.exit_status)}


def export_run(
    run: Path, name: str, out: Path, options: ExportOptions | None = None, *, overwrite: bool = False
) -> ExportSummary:
    """Write the finished clips of the run folder `run` to `out` in the format `name`, or continue such an export.

    `overwrite` removes an earlier export from `out` first. Raises UsageError and CannotContinueError with a sentence
    for the user; every file that was written by then is complete, and the same call continues.
    """
    wanted, options = FORMATS[name], options or ExportOptions()
    _check_options(name, wanted, options)
    if out.resolve().is_relative_to(run.resolve()):
        raise UsageError(f"{out} lies in the run folder {run}, which holds only the run: choose another --out.")
    clips = FinishedClips(run)
    _check_clips(name, wanted, clips, options)
    facts = {"format": name, "clips": clips.digest, "options": _output_options(wanted, options)}
    try:
        with RunLock(out):
            if overwrite:
                _clear(out)
            target = Target(out, facts)
            remarks = [*clips.remarks, *wanted.write(clips, target, options)]
            summary = ExportSummary(
                name, out, clips.num_rows, len(clips), dict(clips.left_out), clips.audio_s, tuple(remarks)
            )
            target.finish(rows=summary.rows, exported=summary.exported, left_out=summary.left_out)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotContinueError(f"The disk of {out} is full. Make room; the same command goes on.") from None
        raise
    return summary


def _check_options(name: str, wanted: ExportFormat, options: ExportOptions) -> None:
    for field in fields(options):
        if getattr(options, field.name) != field.default and field.name not in wanted.supported_options:
            others = " and ".join(other for other, each in FORMATS.items() if field.name in each.supported_options)
            raise UsageError(f"--{_OPTION_NAMES[field.name]} is for --to {others}: leave it out with --to {name}.")


_OPTION_NAMES = {"shard_bytes": "shard-mb", "hard_link": "hard-link", "decode": "decode", "ref_audio": "ref-audio"}


def _check_clips(name: str, wanted: ExportFormat, clips: FinishedClips, options: ExportOptions) -> None:
    if not len(clips):
        raise UsageError(f"{clips.run} has no clips to export: none of its {clips.num_rows} rows is ok.")
    other = sorted(set(clips.suffixes) - wanted.clip_suffixes)
    if other and not options.decode:
        raise UsageError(
            f"{name} takes {' and '.join(sorted(wanted.clip_suffixes))}, and {clips.run} holds {' and '.join(other)} "
            "clips. --decode writes those as 16-bit wav (mp3 and opus stay lossy); hf, audiofolder and webdataset take "
            "them as they are; `synth --format wav` makes wav clips."
        )


def _output_options(wanted: ExportFormat, options: ExportOptions) -> dict[str, Any]:
    """Return the options that decide what is written: an export that was broken off continues only with equal ones."""
    chosen = {name: getattr(options, name) for name in sorted(wanted.supported_options) if name != "hard_link"}
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
        clear(out, FORMATS[before["format"]].file_pattern)
