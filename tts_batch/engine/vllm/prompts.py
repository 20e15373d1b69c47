"""From a SpeechRequest to what the host submits: checked, the prompt's length computed, the reference in a file."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from tts_batch.engine.request import (
    NUM_CODEBOOKS,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_FRAME,
    Reference,
    SpeechRequest,
)
from tts_batch.engine.vllm.messages import HostRequest
from tts_batch.engine.vllm.settings import MAX_CODEC_TOKENS, MAX_MODEL_LEN, Settings, fits_code2wav
from tts_batch.model.checkpoint import Checkpoint
from tts_batch.model.prompt import PromptError, build_prompt
from tts_batch.model.text_tokenizer import TextTokenizer

MIN_REFERENCE_SAMPLES = 1_024  # below, vLLM-Omni refuses a reference
MAX_REFERENCE_FILES = 4_096
NUM_LOADERS = 4  # references are read in parallel
TASKS = {"base": "Base", "custom_voice": "CustomVoice", "voice_design": "VoiceDesign"}
_CONTROL_TOKEN = re.compile(r"<\|\w+\|>|<tts_\w+>")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready for the host, and what its prompt applies."""

    request: HostRequest
    max_frames: int
    effective: dict[str, str]


class Preparer:
    """Prepares requests on one thread; reads references on others, each within a deadline."""

    def __init__(self, checkpoint: Checkpoint, settings: Settings, folder: Path) -> None:
        """`folder` takes the reference files."""
        self._config = checkpoint.config
        self._tokenizer = TextTokenizer(checkpoint.path)
        self._settings = settings
        self._references = ReferenceFiles(folder, settings.stall_timeout_s)

    def load_ahead(self, requests: list[SpeechRequest]) -> None:
        """Begin to read the references of these requests, several at once."""
        for request in requests:
            if request.reference is not None and request.task == self._config.kind == "base":
                self._references.start(request.reference)

    def prepare(self, request: SpeechRequest) -> Prepared:
        """Raises an exception that `results.failure_result` turns into the row's reason."""
        self._check(request)
        clip = None
        if request.reference is not None and request.task == self._config.kind == "base":
            clip = self._references.get(request.reference)
        num_frames = math.ceil(clip.num_samples / SAMPLES_PER_FRAME) if clip else None
        ref_text = request.reference.text if request.reference else None
        prompt = build_prompt(
            self._config,
            self._tokenizer,
            text=request.text,
            task=request.task,
            language=request.language,
            speaker=request.speaker,
            instruct=request.instruct,
            ref_text=ref_text,
            num_ref_frames=num_frames,
            has_x_vector=clip is not None,
            x_vector_only=request.x_vector_only,
            non_streaming=request.non_streaming,
        )
        if prompt.num_tokens + request.max_frames + 1 > MAX_MODEL_LEN:
            raise PromptError(
                "text_too_long",
                f"the prompt takes {prompt.num_tokens} positions and the budget {request.max_frames}; engine vllm has "
                f"{MAX_MODEL_LEN}: shorten the text or the reference, or lower its budget (--max-frames).",
            )
        in_context = 0 if num_frames is None or request.x_vector_only else num_frames
        if not fits_code2wav(in_context, request.max_frames):
            raise PromptError(
                "ref_too_long",
                f"a reference of {in_context} frames and a budget of {request.max_frames} make "
                f"{NUM_CODEBOOKS * (in_context + request.max_frames)} codec tokens, and engine vllm takes fewer than "
                f"{MAX_CODEC_TOKENS}: use a shorter reference, or x_vector_only.",
            )
        effective = prompt.effective
        information: dict[str, list[Any]] = {
            "task_type": [TASKS[request.task]],
            "text": [request.text],
            "language": [effective["language"]],
            "non_streaming_mode": [_is_non_streaming(request)],
            "max_new_tokens": [request.max_frames + 1],
        }
        for name in ("speaker", "instruct"):
            if name in effective:
                information[name] = [effective[name]]
        if clip is not None:
            information["ref_audio"] = [str(clip.path)]
            information["x_vector_only_mode"] = [request.x_vector_only]
            information["ref_code_length"] = [num_frames]
            if not request.x_vector_only:
                information["ref_text"] = [ref_text]
        if self._settings.async_chunk and self._settings.whole_utterance:
            information["full_utterance_decode"] = [True]
        return Prepared(
            HostRequest(request.request_id, prompt.num_tokens, information, self._sampling(request)),
            request.max_frames,
            effective,
        )

    def close(self) -> None:
        """Read nothing more."""
        self._references.close()

    def _sampling(self, request: SpeechRequest) -> dict[str, Any]:
        """The talker's SamplingParams. One token more than frames: only an end token there is a "stop"."""
        p, limit = request.sampling, request.max_frames + 1
        return {
            "temperature": p.temperature if p.do_sample else 0.0,
            "top_k": p.top_k,
            "top_p": p.top_p,
            "repetition_penalty": p.repetition_penalty,
            "seed": request.seed,
            "extra_args": {"tts_local_seed": request.seed},  # of the code predictor
            "min_tokens": min(p.min_new_tokens, limit),
            "max_tokens": limit,
            "stop_token_ids": [self._config.talker.codec_eos_token_id],
            "detokenize": False,
        }

    def _check(self, request: SpeechRequest) -> None:
        if not 0 <= request.seed < 2**63:
            raise PromptError("bad_seed", f"seed {request.seed} is not in 0 .. 2**63 - 1.")
        p = request.sampling
        for name, value in (("temperature", p.temperature), ("repetition_penalty", p.repetition_penalty)):
            if not 0 < value < math.inf:
                raise PromptError("bad_row", f"{name} cannot be {value}: it is a number above 0.")
        if not 0 < p.top_p <= 1:
            raise PromptError("bad_row", f"top_p cannot be {p.top_p}: it is above 0, and at most 1.")
        for name, count, least in (
            ("top_k", p.top_k, 0),
            ("min_new_tokens", p.min_new_tokens, 0),
            ("max_frames", request.max_frames, 1),
        ):
            if not least <= count < 2**31:
                raise PromptError("bad_row", f"{name} cannot be {count}: it is in {least} .. 2**31 - 1.")
        asked = {name: getattr(p, name) for name in self._settings.subtalker}
        if asked != self._settings.subtalker:
            raise PromptError(
                "bad_row",
                f"engine vllm samples the residual codes of all rows alike: it was opened with "
                f"{self._settings.subtalker}, and this row asks for {asked}.",
            )
        transcript = request.reference.text if request.reference and not request.x_vector_only else None
        for name, text in (("text", request.text), ("instruct", request.instruct), ("ref_text", transcript)):
            if text and (found := _CONTROL_TOKEN.search(text)):
                raise PromptError(
                    "bad_text", f"{name} holds {found.group()!r}, which vLLM-Omni would take for a control token."
                )


@dataclass(frozen=True, slots=True)
class ReferenceFile:
    """A reference as vLLM-Omni reads it: a WAV file of floats, mono, 24 kHz."""

    path: Path
    num_samples: int


class ReferenceFiles:
    """The references used last, as files, by content key. Failures are kept too, unless they may pass."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self._files: OrderedDict[str, Future[ReferenceFile]] = OrderedDict()  # least recently used first
        self._loaders = ThreadPoolExecutor(NUM_LOADERS, thread_name_prefix="tts-batch-vllm-reference")
        self._number = 0

    def start(self, reference: Reference) -> Future[ReferenceFile]:
        """Begin to read a reference, unless it is there or being read."""
        known = self._files.get(reference.key)
        if known is None or (known.done() and _may_pass(known.exception())):
            self._number += 1
            path = self._folder / f"reference-{self._number}.wav"
            known = self._files[reference.key] = self._loaders.submit(_write, reference, path)
        self._files.move_to_end(reference.key)
        while len(self._files) > MAX_REFERENCE_FILES:
            _, oldest = self._files.popitem(last=False)
            oldest.cancel()
            if oldest.done() and not oldest.cancelled() and oldest.exception() is None:
                oldest.result().path.unlink(missing_ok=True)
        return known

    def get(self, reference: Reference) -> ReferenceFile:
        """The file of a reference. Raises what its `load` raises, and PromptError when that takes too long."""
        loading = self.start(reference)
        try:
            return loading.result(self._timeout_s)
        except FutureTimeout:
            raise PromptError(
                "ref_unreadable", f"the reference could not be read within {self._timeout_s:g} s."
            ) from None

    def close(self) -> None:
        self._loaders.shutdown(wait=False, cancel_futures=True)


def _write(reference: Reference, path: Path) -> ReferenceFile:
    samples: NDArray[np.float32] = np.asarray(reference.load(), dtype=np.float32)
    if samples.ndim != 1 or len(samples) < MIN_REFERENCE_SAMPLES:
        raise PromptError(
            "ref_too_short",
            f"a reference of shape {samples.shape} cannot be used: engine vllm needs {MIN_REFERENCE_SAMPLES} samples.",
        )
    soundfile.write(path, samples, SAMPLE_RATE_HZ, subtype="FLOAT", format="WAV")
    return ReferenceFile(path, len(samples))


def _may_pass(error: BaseException | None) -> bool:
    return error is not None and bool(getattr(error, "transient", isinstance(error, OSError)))


def _is_non_streaming(request: SpeechRequest) -> bool:
    return request.task != "base" if request.non_streaming is None else request.non_streaming
