"""Progress and end state of every slot, copied to the host: the only thing that runner v2 waits for."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray

from tts_batch.engine.errors import EngineError
from tts_batch.engine.v2.request_state import DONE_LOST, RUNNING, RequestState

WAIT_S = 0.0002


class Flags:
    """`done`, `num_frames` and whether the hidden state is finite, of every slot, in one pinned buffer."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._host = torch.zeros(3, num_slots, dtype=torch.int32, pin_memory=self._on_cuda)
        self._copied = torch.cuda.Event() if self._on_cuda else None

    def start_copy(self, state: RequestState) -> None:
        """Queue the copy; the previous one must have been waited for, or be obsolete."""
        is_lost = state.hidden.sum(dim=1, dtype=torch.float32).isfinite().logical_not()
        flags = torch.stack([state.done, state.num_frames, is_lost.int()])
        self._host.copy_(flags, non_blocking=self._on_cuda)
        if self._copied is not None:
            self._copied.record()

    def wait(self, timeout_s: float) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """done, with DONE_LOST, and num_frames: int32 [slots] each.

        Raises EngineError when the device does not get there in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while self._copied is not None and not self._copied.query():
            if time.monotonic() > deadline_s:
                raise EngineError(f"the device did not finish a window of frames within {timeout_s:g} s")
            time.sleep(WAIT_S)
        done, num_frames, is_lost = self._host.numpy().copy()
        return np.where((done == RUNNING) & (is_lost != 0), DONE_LOST, done), num_frames
