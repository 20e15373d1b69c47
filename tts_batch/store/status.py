"""How far a run is, or how it ended: counts of its rows, from its manifest, its journal or its run.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_batch.errors import ExitStatus
from tts_batch.store.index import JournalIndex
from tts_batch.store.run_json import read_existing_run
from tts_batch.store.storage import shown, storage_of, working_folder

if TYPE_CHECKING:
    from tts_batch.store.manifest import Totals


@dataclass(frozen=True, slots=True)
class JobSummary:
    """How a run ended. `ok`, `failed` and `pending` count all input rows; `made` and the speed only this run's."""

    exit_status: ExitStatus
    out: Path
    rows: int
    ok: int
    failed: int
    pending: int
    made: int  # rows that ended in this run, ok or failed
    audio_s: float  # of all ok rows
    audio_s_per_s: float  # audio made in this run, for each second since its models were loaded
    wall_s: float
    reasons: dict[str, int] = field(default_factory=dict)  # reason → failed rows

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "out": shown(self.out), "exit_status": int(self.exit_status)}


def summarise(out: Path, totals: Totals, *, rows: int, failed: bool = False, **figures: Any) -> JobSummary:
    """Sum up a run over `rows` rows; `failed`: it could not continue. `figures`: made, audio_s_per_s, wall_s."""
    if failed:
        status = ExitStatus.CANNOT_CONTINUE
    elif totals.pending or totals.is_estimate:
        status = ExitStatus.STOPPED
    else:
        status = ExitStatus.SOME_FAILED if totals.failed else ExitStatus.OK
    counts = {name: getattr(totals, name) for name in ("ok", "failed", "pending", "audio_s", "reasons")}
    return JobSummary(exit_status=status, out=out, rows=rows, **counts, **figures)


def read_status(out: Path) -> dict[str, Any]:
    """Return how far the run in `out` is: from its journal, at any moment, also while it runs."""
    with working_folder(out) as folder:
        return _read_status(folder)


def _read_status(out: Path) -> dict[str, Any]:
    live = storage_of(out).live_locks()  # before run.json: a run that ends in between has written it
    run = read_existing_run(out)
    live = live or (storage_of(out).live_locks() if run["state"] == "running" else [])  # a run that began in between
    state = "running" if live else "broken off" if run["state"] == "running" else run["state"]
    counts = run["summary"] if run["summary"] and not live else _count_journal(out, run)
    return {
        "state": state,
        **{name: counts[name] for name in ("rows", "ok", "failed", "pending")},
        "audio_s": round(counts["audio_s"], 3),
        "started": run["started"],
        "ended": run.get("ended"),
    }


def _count_journal(out: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """Count the journal's rows; rows that the table no longer has, or has changed, are counted until the run ends."""
    index = JournalIndex(out)
    rows = int(run["counts"]["rows"])
    failed = index.failed + int(run["counts"]["failed_in_plan"])
    pending = max(rows - index.ok - failed, 0)
    return {"rows": rows, "ok": index.ok, "failed": failed, "pending": pending, "audio_s": index.audio_s}
