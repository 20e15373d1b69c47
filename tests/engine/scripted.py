"""Scripted stages behind the compute loop: they do what a test says, and can do it wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from tts_batch.engine.code2wav.code2wav import clip_result
from tts_batch.engine.compute_loop import ComputeLoop, Stages
from tts_batch.engine.generation import generate
from tts_batch.engine.request import SpeechRequest, SpeechResult
from tts_batch.engine.runner import EngineRow
from tts_batch.model.prompt import Prompt


def prepared_row(request: SpeechRequest, ref_codes: torch.Tensor | None = None) -> EngineRow:
    """A row with next to no prompt."""
    return EngineRow(
        request=request,
        prompt=Prompt((0,), (0,), (), {"language": "auto"}, num_text_tokens=1),
        ref_codes=ref_codes,
        x_vector=None,
        expected_frames=request.max_frames,
        ready_at_s=0.0,
        metrics={},
    )


class ScriptedPreparer:
    """Prepares at once."""

    def load_ahead(self, requests: Iterable[SpeechRequest]) -> None:
        pass

    def load(self, request: SpeechRequest) -> None:
        pass

    def encode_loaded(self) -> None:
        pass

    def prepare(self, request: SpeechRequest) -> EngineRow:
        return prepared_row(request)


class ScriptedRunner:
    """A continuous runner: every step is one frame of every active row, and a row ends after `max_frames` frames."""

    def __init__(
        self, max_num_seqs: int = 4, on_step: Callable[[ScriptedRunner], None] | None = None, look_ahead: int = 0
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.look_ahead = look_ahead  # rows that may wait while all places are taken
        self.waiting: list[EngineRow] = []
        self.active: dict[str, tuple[EngineRow, int]] = {}
        self.num_steps = 0
        self.on_step = on_step

    @property
    def room(self) -> int:
        return self.max_num_seqs + self.look_ahead - len(self.active) - len(self.waiting)

    @property
    def has_free_slots(self) -> bool:
        return len(self.active) + len(self.waiting) < self.max_num_seqs

    @property
    def busy(self) -> bool:
        return bool(self.active or self.waiting)

    def add(self, row: EngineRow) -> None:
        self.waiting.append(row)

    def start_waiting(self) -> None:
        """Nothing begins before `step`."""

    def step(self) -> list[EngineRow]:
        while self.waiting and len(self.active) < self.max_num_seqs:
            row = self.waiting.pop(0)
            assert row.request_id not in self.active
            self.active[row.request_id] = row, 0
        self.num_steps += 1
        if self.on_step:
            self.on_step(self)
        decoded = []
        for name, (row, frames) in list(self.active.items()):
            self.active[name] = row, frames + 1
            if frames + 1 >= row.request.max_frames:
                del self.active[name]
                codes = torch.full((frames + 1, 16), row.request.seed % 2_048)
                decoded.append(row.end(codes, "stop", {"decode_s": 0.0}))
        return decoded

    def progress(self) -> list[tuple[EngineRow, int]]:
        return [*self.active.values(), *((row, -1) for row in self.waiting)]

    def codes_so_far(self, row: EngineRow, num_frames: int) -> torch.Tensor:
        return torch.full((num_frames, 16), row.request.seed % 2_048)

    def cancel(self, request_id: str) -> bool:
        kept = [row for row in self.waiting if row.request_id != request_id]
        found = len(kept) < len(self.waiting)
        self.waiting = kept
        return self.active.pop(request_id, None) is not None or found

    def evict(self) -> list[EngineRow]:
        rows = [row for row, _ in self.active.values()] + self.waiting
        self.active.clear()
        self.waiting.clear()
        return rows


class ScriptedCode2Wav:
    """One sample per frame. While `gate` is shut nothing comes out; `too_big` rows run out of memory."""

    def __init__(self, too_big: int = 1_000) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.too_big = too_big
        self.rows: dict[str, EngineRow] = {}

    @property
    def busy(self) -> bool:
        return bool(self.rows)

    def submit(self, row: EngineRow) -> None:
        assert row.request_id not in self.rows
        self.rows[row.request_id] = row

    def poll(self, *, drain: bool) -> list[SpeechResult]:
        if not self.gate.is_set():
            return []
        rows, self.rows = self.rows, {}
        return [self._result(row) for row in rows.values()]

    def progress(self) -> list[tuple[str, int]]:
        return [(name, 0) for name in self.rows]

    def drop(self, request_id: str) -> bool:
        return self.rows.pop(request_id, None) is not None

    def clear(self) -> None:
        self.rows.clear()

    def _result(self, row: EngineRow) -> SpeechResult:
        codes = row.codes.numpy().astype(np.int16)
        return clip_result(row, codes, np.ones(len(codes), np.float32) if len(codes) < self.too_big else None, 0.0)


@contextmanager
def scripted_engine(runner: ScriptedRunner | None = None, **settings: object) -> Iterator[ComputeLoop]:
    """A ComputeLoop on scripted stages, closed afterwards. It is used as an Engine is."""
    stages = {
        "preparer": ScriptedPreparer(),
        "runner": runner or ScriptedRunner(),
        "code2wav": ScriptedCode2Wav(),
        "stall_timeout_s": 30.0,
        **settings,
    }
    engine = ComputeLoop(Stages(**stages))  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        engine.close()


def run_scripted(
    requests: Iterable[SpeechRequest], runner: ScriptedRunner | None = None, **settings: object
) -> list[SpeechResult]:
    """All results of a scripted engine, in completion order."""
    with scripted_engine(runner, **settings) as engine:
        return list(generate(engine, requests))  # type: ignore[arg-type]


def collect(engine: ComputeLoop, count: int) -> list[SpeechResult]:
    """The next results, `count` of them."""
    results: list[SpeechResult] = []
    deadline_s = time.monotonic() + 20
    while len(results) < count:
        assert time.monotonic() < deadline_s, f"{len(results)} of {count} results came"
        results += engine.step(1.0)
    return results


def compute_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tts-batch-compute"]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)
