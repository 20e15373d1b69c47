"""AsyncOmni with two stage processes that do nothing, and a script in the first word of every text.

    fine (any other word)   half of the budget, then an end token
    budget                  the whole budget, no end token          edge         the whole budget, then an end token
    placeholder             no frame: 80 ms of made-up audio        unreported   as fine, without stage metrics
    short, odd              other samples than frames were sampled  aborted      an output of an aborted request
    rate, nan, mute         8 kHz; not finite; no audio             early        ends before its budget as "length"
    error, oom              this request raises                     fatal        the engine raises and is dead
    die                     the process is killed                   hang         no answer, ever
    stage                   a stage process is killed, and nothing is said

FAKE_VLLM_START: "fail" or "hang" instead of starting. FAKE_VLLM_PIDS: a file that gets the processes' numbers.
FAKE_VLLM_LOG: a file that gets a line for every request.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

SAMPLES_PER_FRAME = 1_920


def _stage() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60.0)


class AsyncOmni:
    def __init__(self, model: str = "", *args: Any, **kwargs: Any) -> None:
        self.model = model
        deploy = yaml.safe_load(Path(kwargs["deploy_config"]).read_text())
        self._most = deploy["stages"][0]["max_num_seqs"]
        self._in_flight = 0
        self._defaults = [SamplingParams(**stage["default_sampling_params"]) for stage in deploy["stages"]]
        self.errored = False
        spawn = multiprocessing.get_context("spawn")
        self._stages = [spawn.Process(target=_stage, daemon=True) for _ in deploy["stages"]]
        for stage in self._stages:
            stage.start()
        if path := os.environ.get("FAKE_VLLM_PIDS"):
            with Path(path).open("a") as file:
                file.write(" ".join(map(str, [os.getpid(), *(stage.pid for stage in self._stages)])) + "\n")
        if os.environ.get("FAKE_VLLM_START") == "fail":
            raise RuntimeError("Engine core initialization failed.")
        if os.environ.get("FAKE_VLLM_START") == "hang":
            time.sleep(600.0)

    def resolve_sampling_params_list(self, sampling_params_list: Any, allow_delta_coercion: bool = False) -> list[Any]:
        return self._defaults if sampling_params_list is None else sampling_params_list

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any = None,
        request_id: str = "",
        *,
        prompt_text: str | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        sampling_params_list: Any = None,
        output_modalities: list[str] | None = None,
        trace_headers: Any = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        arrival_time: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        if self.errored:
            raise EngineDeadError("EngineCore encountered an issue.")
        talker, code2wav = self.resolve_sampling_params_list(sampling_params_list)
        assert talker.output_kind is code2wav.output_kind is RequestOutputKind.FINAL_ONLY
        information = prompt["additional_information"]
        assert all(isinstance(value, list) and len(value) == 1 for value in information.values())
        if path := os.environ.get("FAKE_VLLM_LOG"):
            with Path(path).open("a") as file:
                told = {"information": information, "tokens": len(prompt["prompt_token_ids"]), "seed": talker.seed}
                file.write(json.dumps(told) + "\n")
        self._in_flight += 1
        if self._in_flight > self._most:
            self.errored = True
        try:
            await asyncio.sleep(0.01)
            yield await self._answer(information["text"][0].split()[0].lower(), talker)
        finally:
            self._in_flight -= 1

    async def _answer(self, word: str, talker: SamplingParams) -> Any:
        if self.errored:
            raise EngineDeadError("EngineCore encountered an issue.")
        if word == "error":
            raise EngineGenerateError("a row of the batch is malformed")
        if word == "oom":
            raise EngineGenerateError("CUDA out of memory. Tried to allocate 2 GiB")
        if word == "fatal":
            self.errored = True
            raise EngineDeadError("EngineCore encountered an issue.")
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "stage":
            self._stages[0].kill()
            await asyncio.sleep(600.0)
        if word == "hang":
            await asyncio.sleep(600.0)
        budget = talker.max_tokens - 1
        frames = budget if word in ("budget", "edge") else 0 if word == "placeholder" else max(1, budget // 2)
        frames = max(frames, min(talker.min_tokens, budget)) if word != "placeholder" else 0
        reason = {"budget": "length", "early": "length", "aborted": "abort"}.get(word, "stop")
        return _output(word, frames, reason)


def _output(word: str, frames: int, reason: str) -> Any:
    samples = {"placeholder": SAMPLES_PER_FRAME, "short": (frames - 1) * SAMPLES_PER_FRAME}.get(
        word, frames * SAMPLES_PER_FRAME + (word == "odd")
    )
    audio = (0.2 * np.sin(np.arange(samples) / 20)).astype(np.float32)
    if word == "nan":
        audio[100] = np.nan
    found = {} if word == "mute" else {"audio": [audio[:1000], audio[1000:]], "sr": 8_000 if word == "rate" else 24_000}
    stage = {"num_tokens_out": frames + 1, "finish_reason": reason, "stage_gen_time_ms": 5.0}
    metrics = {} if word == "unreported" else {"stage_metrics": {"0": stage, "1": {"stage_gen_time_ms": 1.0}}}
    completion = SimpleNamespace(multimodal_output=found, finish_reason="stop")
    return SimpleNamespace(outputs=[completion], multimodal_output={}, metrics=metrics, finished=True)
