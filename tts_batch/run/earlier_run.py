"""`--skip-existing RUN`: rows whose clip an earlier run has made are copied from there, by their fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tts_batch.config import JobConfig
from tts_batch.errors import UsageError
from tts_batch.plan.rows import PlannedRow
from tts_batch.store.clips import clip_path, digest_of
from tts_batch.store.index import JournalIndex, input_digest
from tts_batch.store.journal import Outcome
from tts_batch.store.run_json import read_existing_run
from tts_batch.store.storage import shown, storage_of, working_folder

GROUP_ROWS = 256


class EarlierRun:
    """The clips of another run folder, copied in groups into the folder `out` of this one and recorded there."""

    def __init__(self, config: JobConfig, run: Path, segment: Path) -> None:
        """`segment`: the journal's, of what is copied.

        Raises UsageError when `run` is no run folder, or its clips have another format.
        """
        self._config = config
        self._stack = ExitStack()
        self._waiting: list[tuple[Outcome, Outcome]] = []  # theirs, and ours
        self.num_copied = 0
        try:
            folder = self._stack.enter_context(working_folder(run))
            made = read_existing_run(folder).get("settings", {}).get("format")
            if made != config.format:
                raise UsageError(
                    f"--skip-existing {shown(run)} holds {made} clips and this run makes {config.format}: "
                    "give both the same --format."
                )
            self._theirs, self._index = storage_of(folder), JournalIndex(folder)
            ours = storage_of(config.out.resolve())
            self._clips, self._segment = ours.open_clips(segment), ours.open_segment(segment)
            self._threads = self._stack.enter_context(ThreadPoolExecutor(self._clips.threads, "copy"))
        except BaseException:
            self._stack.close()
            raise

    def take(self, planned: PlannedRow) -> bool:
        """Copy the clip of a row, at the latest with `flush`; False when the earlier run does not have it."""
        found = self._index.made(planned.fingerprint)
        if found is None or found.audio is None or (self._config.save_codes and found.codes is None):
            return False
        row_id = planned.row.id
        mine = replace(
            found,
            id=row_id,
            input_digest=input_digest(planned),
            audio=clip_path(row_id, PurePosixPath(found.audio).suffix),
            codes=clip_path(row_id, ".npy") if self._config.save_codes else None,
        )
        if mine.codes is None:
            mine = replace(mine, codes_bytes=0, codes_digest=None)
        self._waiting.append((found, mine))
        if len(self._waiting) >= GROUP_ROWS:
            self.flush()
        return True

    def flush(self) -> None:
        """Copy what waits, and record it. A clip that is gone or damaged there stays to be made here."""
        waiting, self._waiting = self._waiting, []
        read = [(mine, files) for mine, files in self._threads.map(self._read, waiting) if files is not None]
        staged = list(self._threads.map(self._clips.stage, [files for _, files in read]))
        errors = self._clips.publish(staged, self._each)
        if error := next(filter(None, errors), None):
            raise error
        self._segment.append(mine for mine, _ in read)
        self.num_copied += len(read)

    def close(self) -> None:
        self._segment.close()
        self._clips.close()
        self._stack.close()

    def _read(self, pair: tuple[Outcome, Outcome]) -> tuple[Outcome, dict[str, bytes] | None]:
        theirs, mine = pair
        files = {}
        for source, target, digest in (
            (theirs.audio, mine.audio, theirs.audio_digest),
            (theirs.codes, mine.codes, theirs.codes_digest),
        ):
            if source is None or target is None:
                continue
            try:
                content = self._theirs.read(source)
            except FileNotFoundError:
                return mine, None
            if digest is not None and digest_of(content) != digest:
                return mine, None
            files[target] = content
        return mine, files

    def _each(self, work: Callable[[Path], None], folders: Iterable[Path]) -> None:
        list(self._threads.map(work, folders))
