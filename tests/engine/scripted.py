"""Scripted stages behind the Generation contract: they do what a test says, and can do it wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tts_batch.engine.generation import Generation, Stages
from tts_batch.engine.request import SpeechRequest
from tts_batch.engine.runner import DecodedRow, PreparedRow
from tts_batch.model.prompt import Prompt


class ScriptedPreparer:
    """Prepares at once."""

    def prepare(self, request: SpeechRequest) -> PreparedRow:
        prompt = Prompt((0,), (0,), (), {"language": "auto"}, num_text_tokens=1)
        return PreparedRow(
            request=request,
            prompt=prompt,
            ref_codes=None,
            x_vector=None,
            expected_frames=request.max_frames,
            ready_at_s=0.0,
            metrics={},
        )


class ScriptedRunner:
    """A continuous runner: every step is one frame of every active row, and a row ends after `max_frames` frames."""

    def __init__(self, max_num_seqs: int = 4, on_step: Callable[[ScriptedRunner], None] | None = None) -> None:
        self.max_num_seqs = max_num_seqs
        self.waiting: list[PreparedRow] = []
        self.active: dict[str, tuple[PreparedRow, int]] = {}
        self.num_steps = 0
        self.on_step = on_step

    @property
    def room(self) -> int:
        return self.max_num_seqs - len(self.active) - len(self.waiting)

    @property
    def busy(self) -> bool:
        return bool(self.active or self.waiting)

    def add(self, row: PreparedRow) -> None:
        self.waiting.append(row)

    def step(self) -> list[DecodedRow]:
        while self.waiting and len(self.active) < self.max_num_seqs:
            row = self.waiting.pop(0)
            assert row.request.request_id not in self.active
            self.active[row.request.request_id] = row, 0
        self.num_steps += 1
        if self.on_step:
            self.on_step(self)
        decoded = []
        for name, (row, frames) in list(self.active.items()):
            self.active[name] = row, frames + 1
            if frames + 1 >= row.request.max_frames:
                del self.active[name]
                codes = torch.full((frames + 1, 16), row.request.seed % 2_048)
                decoded.append(DecodedRow(row, codes, "stop", True, {"decode_s": 0.0}))
        return decoded

    def cancel(self, request_id: str) -> bool:
        kept = [row for row in self.waiting if row.request.request_id != request_id]
        found = len(kept) < len(self.waiting)
        self.waiting = kept
        return self.active.pop(request_id, None) is not None or found

    def evict(self) -> list[PreparedRow]:
        rows = [row for row, _ in self.active.values()] + self.waiting
        self.active.clear()
        self.waiting.clear()
        return rows


class ScriptedCode2Wav:
    """One sample per frame; `gate` holds it up, `too_big` rows run out of memory."""

    def __init__(self, too_big: int = 1_000) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.too_big = too_big

    def decode(self, rows: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> list[np.ndarray | None]:
        assert self.gate.wait(10)
        return [np.ones(len(codes), np.float32) if len(codes) < self.too_big else None for codes, _ in rows]


def scripted_generation(requests: object, runner: ScriptedRunner | None = None, **settings: object) -> Generation:
    """A Generation on scripted stages."""
    stages = {
        "preparer": ScriptedPreparer(),
        "runner": runner or ScriptedRunner(),
        "code2wav": ScriptedCode2Wav(),
        "stall_timeout_s": 30.0,
        **settings,
    }
    return Generation(requests, Stages(**stages))  # type: ignore[arg-type]
