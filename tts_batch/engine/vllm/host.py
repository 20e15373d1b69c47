"""The host program: vLLM-Omni in a process group of its own, serving one engine over a socket.

    python -m tts_batch.engine.vllm.host SOCKET_NUMBER

It ends when its engine closes the socket, and with it everything in its process group.
"""

from __future__ import annotations

import asyncio
import copy
import faulthandler
import json
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tts_batch.engine.vllm.messages import (
    HEADER_BYTES,
    AbortHostRequest,
    FromHost,
    HostFailed,
    HostReady,
    HostRequest,
    HostRequestFailed,
    HostResult,
    OpenHost,
    ToHost,
    encode,
    frame_length,
)

ENGINE_GONE, FAILED = 70, 71  # exit statuses, for logs only


class Host:
    """One AsyncOmni and the requests in it, on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Open the engine, then serve requests until the other end closes the socket."""
        opening = await self._receive()
        if not isinstance(opening, OpenHost):
            return
        try:
            self._omni, self._count = open_omni(opening), PromptLength(opening.model)
        except Exception as error:
            traceback.print_exception(error)
            await self._send(HostFailed(f"{type(error).__name__}: {error}"))
            return
        await self._send(HostReady())
        while (message := await self._receive()) is not None:
            if isinstance(message, HostRequest):
                self._tasks[message.request_id] = asyncio.create_task(self._run(message))
            elif isinstance(message, AbortHostRequest) and (task := self._tasks.pop(message.request_id, None)):
                task.cancel()  # generate() aborts it in the stages

    async def _run(self, request: HostRequest) -> None:
        try:
            answer: FromHost = await self._generate(request)
        except Exception as error:
            if is_fatal(error, self._omni):
                traceback.print_exception(error)
                await self._send(HostFailed(f"{type(error).__name__}: {error}"))
                end_group(FAILED)
            answer = HostRequestFailed(request.request_id, f"{type(error).__name__}: {error}")
        self._tasks.pop(request.request_id, None)
        await self._send(answer)

    async def _generate(self, request: HostRequest) -> HostResult:
        expected = self._count(request.information)
        if expected != request.prompt_tokens:
            raise ValueError(
                f"the placeholder prompt has {request.prompt_tokens} tokens, and vLLM-Omni counts {expected} for the "
                "same row: its audio would be wrong."
            )
        prompt = {
            "prompt_token_ids": [0] * request.prompt_tokens,
            "additional_information": dict(request.information),
        }
        last = None
        stages = stage_sampling(self._omni, request.sampling)
        async for output in self._omni.generate(prompt, request_id=request.request_id, sampling_params_list=stages):
            last = output
        if last is None:
            raise RuntimeError("the engine ended the request without an output.")
        return read_output(request.request_id, last)

    async def _send(self, message: FromHost) -> None:
        self._writer.write(encode(message))
        await self._writer.drain()

    async def _receive(self) -> ToHost | None:
        """The next message; None when the other end has closed the socket."""
        try:
            header = await self._reader.readexactly(HEADER_BYTES)
            message: ToHost = pickle.loads(await self._reader.readexactly(frame_length(header)))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message


def open_omni(opening: OpenHost) -> Any:
    """An AsyncOmni with both stages ready."""
    from vllm_omni.entrypoints.async_omni import AsyncOmni

    seconds = max(1, int(opening.start_timeout_s))
    return AsyncOmni(
        model=opening.model, deploy_config=opening.deploy_file, init_timeout=seconds, stage_init_timeout=seconds
    )


class PromptLength:
    """How long vLLM-Omni says a prompt is, by its own function and the tokenizer that its talker loads."""

    def __init__(self, model: str) -> None:
        from transformers import AutoTokenizer
        from vllm_omni.model_executor.models.qwen3_tts.prompt_embeds_builder import Qwen3TTSPromptEmbedsBuilder

        self._estimate = Qwen3TTSPromptEmbedsBuilder.estimate_prompt_len_from_additional_information
        self._tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=True, use_fast=True)
        self._talker = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))["talker_config"]

    def __call__(self, information: Mapping[str, list[Any]]) -> int:
        return int(
            self._estimate(
                dict(information),
                task_type=information["task_type"][0],
                tokenize_prompt=lambda text: self._tokenizer(text, padding=False)["input_ids"],
                codec_language_id=self._talker.get("codec_language_id"),
                spk_is_dialect=self._talker.get("spk_is_dialect"),
            )
        )


def stage_sampling(omni: Any, talker: Mapping[str, Any]) -> list[Any]:
    """The SamplingParams of both stages: the talker's as requested, Code2Wav's as the deploy file has them."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    code2wav = copy.deepcopy(omni.resolve_sampling_params_list(None)[1])
    code2wav.output_kind = RequestOutputKind.FINAL_ONLY
    return [SamplingParams(**talker, output_kind=RequestOutputKind.FINAL_ONLY), code2wav]


def read_output(request_id: str, output: Any) -> HostResult:
    """The parts of an OmniRequestOutput that an engine needs."""
    outputs = getattr(output, "outputs", None) or []
    found = getattr(output, "multimodal_output", None)
    if not found and outputs:
        found = getattr(outputs[0], "multimodal_output", None)
    values: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    audio = values.get("audio", values.get("model_outputs"))
    metrics = getattr(output, "metrics", None)
    stages = metrics.get("stage_metrics") if isinstance(metrics, Mapping) else None
    talker = (stages.get("0") or stages.get(0) or {}) if isinstance(stages, Mapping) else {}
    num_tokens, reason = talker.get("num_tokens_out"), talker.get("finish_reason")
    return HostResult(
        request_id=request_id,
        audio=None if audio is None else _waveform(audio),
        sample_rate=_whole(values.get("sr")),
        num_tokens=num_tokens if isinstance(num_tokens, int) else None,
        finish_reason=None if reason is None else str(reason),
        metrics={
            f"stage_{number}_s": float(stage["stage_gen_time_ms"]) / 1000
            for number, stage in (stages.items() if isinstance(stages, Mapping) else ())
            if isinstance(stage, Mapping) and isinstance(stage.get("stage_gen_time_ms"), int | float)
        },
    )


def is_fatal(error: BaseException, omni: Any) -> bool:
    """Whether the engine is dead, and not this request alone has failed."""
    names = {base.__name__ for base in type(error).__mro__}
    return "EngineDeadError" in names or bool(getattr(omni, "errored", False))


def _waveform(audio: Any) -> np.ndarray:
    """A tensor, or the tensors of its chunks, as float32 [samples]."""
    parts = audio if isinstance(audio, list | tuple) else [audio]
    arrays = [np.asarray(part.detach().float().cpu() if hasattr(part, "detach") else part) for part in parts]
    joined = np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.zeros(0)
    return joined.astype(np.float32)


def _whole(value: Any) -> int | None:
    """A rate in whatever form: a number, a tensor of one, a list of these."""
    while isinstance(value, list | tuple) and value:
        value = value[-1]
    return None if value is None or isinstance(value, list | tuple) else int(value)


def end_group(status: int) -> None:
    """End this process with everything that vLLM has started."""
    sys.stderr.flush()
    with suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(status)


async def run(number: int) -> None:
    """Serve the engine at the other end of the socket of this number."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=number))
    await Host(reader, writer).serve()


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # the engine asks for stacks when it gets no answers
    asyncio.run(run(int(sys.argv[1])))
    end_group(ENGINE_GONE)


if __name__ == "__main__":
    main()
