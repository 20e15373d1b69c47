"""A deterministic engine without a model, `--engine tests.fake_engine:create`, that fails in every way on demand.

The environment variable FAKE_ENGINE holds JSON: {"slots": 4, "row_s": 0.0, "start_s": 0.0, "close_s": 0.0,
"children": false, "fail_start": MESSAGE, "fail_step": MESSAGE, "takes_none": false, "calls": FILE, "state": FOLDER,
"edges_s": [HEAD, TAIL], "faults": {request id: fault}}; tests/fakes/sitecustomize.py reads more of it.
`calls` gets a line for every request; `edges_s` is silence around each clip; with `takes_none` it wants no request.
"endless" goes on until the row is aborted, "deaf" ends as if it was not, "assert" breaks the device until the worker
is another; "no_array" and "no_effective" do not keep to the contract; "overwritten" uses its buffer again.
A fault that ends in "_once" strikes once for each row, remembered under `state`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tts_batch.engine.errors import DuplicateRequest
from tts_batch.engine.request import EngineConfig, SpeechRequest, SpeechResult

SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_FRAME = 1_920


def create(config: EngineConfig) -> FakeEngine:
    settings = json.loads(os.environ.get("FAKE_ENGINE", "{}"))
    if "fail_start" in settings:
        raise RuntimeError(settings["fail_start"])
    time.sleep(settings.get("start_s", 0.0))
    if settings.get("children"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
    engine = FakeEngine(settings)
    engine.info = engine.info | {"placement": config.placement, "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    return engine


class FakeEngine:
    """Ends rows in the order of their arrival, one every `row_s`; audio depends on the request alone."""

    sample_rate = SAMPLE_RATE_HZ
    info = {"runner": "fake", "dtype": "float32"}  # noqa: RUF012

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._faults: dict[str, str] = settings.get("faults", {})
        self._working: list[SpeechRequest] = []
        self._aborted: set[str] = set()
        self._broken = False
        self._held: list[SpeechResult] = []  # until the next one
        self._late: list[SpeechResult] = []  # until nothing else is left
        self._buffer = np.zeros(0, np.float32)

    @property
    def num_wanted(self) -> int:
        return 0 if self._settings.get("takes_none") else max(0, self._settings.get("slots", 4) - len(self._working))

    def add_request(self, request: SpeechRequest) -> None:
        if any(other.request_id == request.request_id for other in self._working):
            raise DuplicateRequest(request.request_id)
        if "calls" in self._settings:
            with open(self._settings["calls"], "ab", buffering=0) as file:
                file.write(f"{request.request_id}\t{request.seed}\n".encode())
        self._working.append(request)

    def abort_request(self, request_id: str) -> None:
        self._aborted.add(request_id)

    def step(self, timeout_s: float) -> list[SpeechResult]:
        if "fail_step" in self._settings:
            raise RuntimeError(self._settings["fail_step"])
        if not self._working:
            late, self._late = self._held + self._late, []
            self._held = []
            if not late:
                time.sleep(timeout_s)
            return late
        time.sleep(self._settings.get("row_s", 0.0))
        request = self._working.pop(0)
        if self._faults.get(request.request_id) == "endless" and request.request_id not in self._aborted:
            self._working.append(request)
            return []
        return list(self._finish(request))

    def close(self) -> None:
        time.sleep(self._settings.get("close_s", 0.0))

    def _finish(self, request: SpeechRequest) -> Iterator[SpeechResult]:
        good = speak(request)
        assert good.audio is not None
        self._buffer[:] = 0.0
        if edges_s := self._settings.get("edges_s"):
            good = replace(good, audio=np.pad(good.audio, [round(edge_s * SAMPLE_RATE_HZ) for edge_s in edges_s]))
        if request.request_id in self._aborted and self._faults.get(request.request_id) != "deaf":
            yield replace(good, audio=None, finish_reason="cancelled", eos=False)
            return
        fault = self._fault(request.request_id)
        if fault == "assert" or self._broken:
            self._broken = True
            error = "CUDA error: device-side assert triggered"
            yield replace(good, audio=None, finish_reason="error", reason="engine_error", error=error)
            return
        match fault:
            case "missing":
                return
            case "late":
                self._late.append(good)
                return
            case "swapped":  # comes after the next one
                self._held.append(good)
                return
            case "repeated":
                yield good
                yield replace(good, audio=-good.audio)
            case "silent_twice":
                yield replace(good, audio=np.zeros_like(good.audio))
                yield replace(good, audio=np.zeros_like(good.audio))
            case "unknown":
                yield replace(good, request_id="nobody")
                yield good
            case "non_finite":
                yield replace(good, audio=np.where(np.arange(good.audio.size) == 7, np.nan, good.audio))
            case "empty":
                yield replace(good, audio=np.zeros(0, np.float32))
            case "none":
                yield replace(good, audio=None)
            case "silent":
                yield replace(good, audio=np.zeros_like(good.audio))
            case "loud":
                yield replace(good, audio=good.audio * 4)
            case "noise":
                noise = 0.1 * np.random.default_rng(0).standard_normal(good.audio.size)
                yield replace(good, audio=noise.astype(np.float32))
            case "leak":
                assert request.reference is not None
                yield replace(good, audio=np.concatenate([request.reference.load(), good.audio]))
            case "length" | "loop":
                yield replace(good, finish_reason=fault, eos=False, num_frames=request.max_frames)
            case "at_budget":
                yield replace(good, eos=False, num_frames=request.max_frames)
            case "over_budget":
                yield replace(good, num_frames=request.max_frames + 1)
            case "no_array":
                yield replace(good, audio=good.audio.tolist())
            case "no_effective":
                yield replace(good, effective=None)
            case "overwritten":
                self._buffer = good.audio
                yield good
                return
            case "strange":
                yield replace(good, finish_reason="done")
            case "error":
                yield replace(
                    good, audio=None, finish_reason="error", reason="ref_unreadable", error="It cannot be read."
                )
            case "raise":
                raise RuntimeError("CUDA error: device-side assert triggered")
            case "odd_rate":
                yield replace(good, sample_rate=22_050)
            case "oom":
                raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory")
            case "kill":
                print(f"about to die on {request.request_id}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(600)
            case _:
                yield good
        yield from self._held
        self._held.clear()

    def _fault(self, row_id: str) -> str:
        fault = self._faults.get(row_id, "")
        if fault.endswith("_once"):
            mark = Path(self._settings["state"]) / sha256(row_id.encode()).hexdigest()
            if mark.exists():
                return ""
            mark.touch()
        return fault.removesuffix("_once")


def speak(request: SpeechRequest) -> SpeechResult:
    """A tone whose pitch and length come from everything in the request that should change the sound."""
    reference = request.reference
    said = [request.text, request.task, request.language, request.speaker, request.instruct, request.seed]
    voice = [reference.key, float(np.abs(reference.load()).sum())] if reference else []
    digest = sha256(json.dumps(said + voice).encode()).digest()
    num_frames = min(2 + len(request.text) // 4, request.max_frames - 1)
    hz = 110 + int.from_bytes(digest[:2], "little") % 2_000
    time_s = np.arange(num_frames * SAMPLES_PER_FRAME) / SAMPLE_RATE_HZ
    return SpeechResult(
        request_id=request.request_id,
        audio=(0.3 * np.sin(2 * np.pi * hz * time_s)).astype(np.float32),
        sample_rate=SAMPLE_RATE_HZ,
        codes=np.frombuffer(digest, np.uint8)[:16].astype(np.int64)[None].repeat(num_frames, axis=0),
        num_frames=num_frames,
        finish_reason="stop",
        eos=True,
        effective={"language": request.language or "auto"},
    )
