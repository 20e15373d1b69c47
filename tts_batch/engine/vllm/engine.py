"""VllmEngine: requests through vLLM-Omni, in a host process, each within a deadline."""

from __future__ import annotations

import logging
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tts_batch.engine.errors import EngineConfigError, EngineError
from tts_batch.engine.exchange import Exchange
from tts_batch.engine.request import SAMPLE_RATE_HZ, EngineConfig, SpeechRequest, SpeechResult
from tts_batch.engine.results import error_result, failure_result
from tts_batch.engine.vllm.memory import check_memory
from tts_batch.engine.vllm.messages import (
    AbortHostRequest,
    ChannelError,
    FromHost,
    HostFailed,
    HostReady,
    HostRequestFailed,
    HostResult,
    OpenHost,
    ToHost,
)
from tts_batch.engine.vllm.outputs import to_result
from tts_batch.engine.vllm.process import HostProcess
from tts_batch.engine.vllm.prompts import Prepared, Preparer
from tts_batch.engine.vllm.settings import resolve_settings, write_deploy_file
from tts_batch.engine.vllm.versions import find_problem, find_versions
from tts_batch.model.checkpoint import CheckpointError, resolve_checkpoint

logger = logging.getLogger(__name__)

RECEIVE_S = 0.02  # how long new requests may wait while others are in the host
IDLE_S = 1.0  # how often an idle host is looked at
SEND_S = 30.0  # for the host to read a message
ENDING_S = 1.0  # for a host that has closed its socket to end
JOIN_S = 30.0
BURST = 64  # requests prepared between two looks at the host


@dataclass(slots=True)
class _Running:
    """A request in the host, which knows it by an id that is never used again."""

    request_id: str
    prepared: Prepared
    submitted_s: float


class VllmEngine:
    """An Engine over vLLM-Omni. When its host dies or gives no sign, so does the engine, with an EngineError."""

    sample_rate = SAMPLE_RATE_HZ

    def __init__(self, config: EngineConfig) -> None:
        """Raises EngineConfigError when it cannot start: packages, checkpoint, memory, a deadline."""
        self._settings = settings = resolve_settings(config)
        versions = find_versions()
        if (problem := find_problem(versions)) is not None:
            raise EngineConfigError(f"engine vllm: {problem}")
        try:
            checkpoint = resolve_checkpoint(config.model, config.model_revision)
        except CheckpointError as error:
            raise EngineConfigError(str(error)) from error
        check_memory(settings)
        self._folder = Path(tempfile.mkdtemp(prefix="tts-batch-vllm-"))
        self._host: HostProcess | None = HostProcess(settings, self._folder)
        try:
            deploy_file = write_deploy_file(settings, self._folder)
            self._open(self._host, OpenHost(str(checkpoint.path), str(deploy_file), settings.start_timeout_s))
            self._preparer = Preparer(checkpoint, settings, self._folder)
        except BaseException:
            self._end_host()
            raise
        self._capacity = settings.sizes.max_num_seqs
        self.info = {
            "runner": settings.runner,
            "device": "cuda:0",
            "code2wav_device": "cuda:1" if settings.is_split else "cuda:0",
            "dtype": "bfloat16",
            "profile": settings.profile,
            "code2wav_mode": config.code2wav_mode,
            "cuda_graph": str(not settings.is_eager),
            "async_chunk": str(settings.async_chunk),
            "gpu_memory_utilization": str(settings.gpu_memory_utilization),
            **{name: str(value) for name, value in asdict(settings.sizes).items()},
            **{name.replace("-", "_"): version for name, version in versions.items()},
        }
        logger.info("vllm engine: %s", ", ".join(f"{name} {value}" for name, value in self.info.items()))
        self._exchange = Exchange(4 * self._capacity, aborts_at_once=True)
        self._running: dict[str, _Running] = {}  # by their ids in the host
        self._num_submitted = 0
        self._last_answer_s = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="tts-batch-vllm", daemon=True)
        self._thread.start()

    @property
    def num_wanted(self) -> int:
        """Twice the rows that it decodes together, less the requests in flight; 0 when it is dead or closed."""
        if self._exchange.is_closed:
            return 0
        return max(0, 2 * self._capacity - self._exchange.num_waiting - len(self._exchange.owed))

    def add_request(self, request: SpeechRequest) -> None:
        """Take a request in. Raises DuplicateRequest for an id in flight, EngineError when the engine is dead."""
        self._exchange.add(request)

    def abort_request(self, request_id: str) -> None:
        """End a request in flight as "cancelled" at once; any other is left alone."""
        self._exchange.abort(request_id)

    def step(self, timeout_s: float) -> list[SpeechResult]:
        """What has ended since the last call, after at most `timeout_s`. Raises EngineError when dead or closed."""
        return self._exchange.collect(timeout_s) or []

    def close(self) -> None:
        """End vLLM-Omni with all its processes. Requests in flight get no result."""
        self._exchange.close()
        self._thread.join(JOIN_S)
        self._preparer.close()
        self._end_host()

    def _open(self, host: HostProcess, opening: OpenHost) -> None:
        """Wait until both stages are ready."""
        allowed_s = opening.start_timeout_s
        try:
            host.channel.send(opening, SEND_S)
            answers = host.channel.receive(allowed_s)
        except ChannelError as error:
            raise EngineConfigError(f"engine vllm cannot start: its host {error}{self._how_ended()}.") from error
        if not answers:
            raise EngineConfigError(
                f"engine vllm was not ready after {allowed_s:g} s: --no-cuda-graph starts sooner, or allow more with "
                "--engine-option start_timeout_s=…"
            )
        if not isinstance(answers[0], HostReady):
            cause = answers[0].error if isinstance(answers[0], HostFailed) else repr(answers[0])
            raise EngineConfigError(f"engine vllm cannot start: {cause}")

    def _serve(self) -> None:
        """The thread between the caller and the host."""
        try:
            while not self._exchange.is_closed:
                self._drop_aborted()
                self._submit(self._exchange.take(min(BURST, self._capacity - len(self._running))))
                if self._running:
                    self._receive(RECEIVE_S)
                else:
                    self._exchange.wait_for_work(IDLE_S)
                    self._receive(0.0)
                self._check_deadlines()
        except BaseException as error:
            if not isinstance(error, EngineError):
                logger.exception("the thread of engine vllm ends")
            failure = error if isinstance(error, EngineError) else EngineError(f"engine vllm: {error!r}")
            self._end_host()
            self._exchange.close(failure)

    def _submit(self, requests: list[SpeechRequest]) -> None:
        self._preparer.load_ahead(requests)
        for request in requests:
            try:
                prepared = self._preparer.prepare(request)
            except Exception as error:
                self._put([failure_result(request.request_id, error)])
                continue
            self._num_submitted += 1
            host_id = f"row{self._num_submitted}"  # it becomes part of file names in /dev/shm
            self._running[host_id] = _Running(request.request_id, prepared, time.monotonic())
            self._send(replace(prepared.request, request_id=host_id))

    def _drop_aborted(self) -> None:
        """End what the caller has aborted in the host too."""
        for host_id, running in list(self._running.items()):
            if running.request_id not in self._exchange.owed:
                self._abort(host_id)

    def _abort(self, host_id: str) -> None:
        del self._running[host_id]
        self._send(AbortHostRequest(host_id))

    def _receive(self, timeout_s: float) -> None:
        """Take all that the host has answered, waiting at most `timeout_s` for the first."""
        try:
            answers = self._live_host.channel.receive(timeout_s)
            while answers:
                for answer in answers:
                    self._take(answer)
                answers = self._live_host.channel.receive(0.0)
        except ChannelError as error:
            raise EngineError(f"the host of engine vllm {error}{self._how_ended()}.") from error

    def _take(self, answer: FromHost) -> None:
        if isinstance(answer, HostFailed):
            raise EngineError(f"engine vllm is dead: {answer.error}")
        if not isinstance(answer, HostResult | HostRequestFailed):
            raise EngineError(f"the host of engine vllm sent {answer!r}, unasked.")
        self._last_answer_s = time.monotonic()
        running = self._running.pop(answer.request_id, None)
        if running is None:  # aborted, late, or returned twice
            logger.warning("ignored a result for %r: it is not in flight", answer.request_id)
            return
        if isinstance(answer, HostRequestFailed):
            reason = "out_of_memory" if "out of memory" in answer.error else "engine_error"
            result = error_result(running.request_id, reason, f"vLLM-Omni: {answer.error}")
        else:
            answer = replace(answer, request_id=running.request_id)
            result = to_result(answer, running.prepared.max_frames, running.prepared.effective)
        self._put([result])

    def _check_deadlines(self) -> None:
        """The engine is stuck when nothing is answered for as long as the longest request may take.

        A request that is late fails alone, once a later answer shows that the engine went on without it.
        """
        if not self._running:
            return
        quiet_since_s = max(self._last_answer_s, min(running.submitted_s for running in self._running.values()))
        allowed_s = self._settings.deadline_s(max(running.prepared.max_frames for running in self._running.values()))
        if time.monotonic() - quiet_since_s > allowed_s:
            self._live_host.log_stacks()
            raise EngineError(
                f"engine vllm is stuck: {len(self._running)} requests in flight, and no answer for {allowed_s:.0f} s."
            )
        for host_id, running in list(self._running.items()):
            allowed_s = self._settings.deadline_s(running.prepared.max_frames)
            if running.submitted_s + allowed_s < self._last_answer_s:
                self._abort(host_id)
                message = f"engine vllm returned no result within {allowed_s:.0f} s, and went on."
                self._put([error_result(running.request_id, "stalled", message)])

    def _put(self, results: Iterable[SpeechResult]) -> None:
        """Hand results over; the time that the caller lets it wait counts against nobody's deadline."""
        started_s = time.monotonic()
        self._exchange.put(result for result in results if result.request_id in self._exchange.owed)
        if (waited_s := time.monotonic() - started_s) > RECEIVE_S:
            self._last_answer_s += waited_s
            for running in self._running.values():
                running.submitted_s += waited_s

    def _send(self, message: ToHost) -> None:
        try:
            self._live_host.channel.send(message, SEND_S)
        except ChannelError as error:
            raise EngineError(f"the host of engine vllm {error}{self._how_ended()}.") from error

    @property
    def _live_host(self) -> HostProcess:
        if self._host is None:
            raise EngineError("this engine is closed.")
        return self._host

    def _how_ended(self) -> str:
        """How the host ended, in words for the end of a sentence; it is ended for it if it has not."""
        host, self._host = self._host, None
        status = None
        if host is not None:
            with suppress(subprocess.TimeoutExpired):
                status = host.process.wait(ENDING_S)
            host.end()
        if status is None:
            return ""
        return f", by signal {-status}" if status < 0 else f", with status {status}"

    def _end_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.end()
        shutil.rmtree(self._folder, ignore_errors=True)
