"""The engine contract: SpeechRequest in, SpeechResult out, and the Engine protocol between them.

Nothing here knows about tables, files or journals; importing it loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_FRAME = 1_920
FRAMES_PER_S = 12.5
NUM_CODEBOOKS = 16


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The ten official generation fields and min_new_tokens. Defaults are the released generation_config.json's.

    `max_new_tokens` is the checkpoint's limit (frames + 1); a request's `max_frames` is what an engine obeys.
    """

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    max_new_tokens: int = 8192
    min_new_tokens: int = 2


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A voice to clone. An engine calls `load` once for a key, on any thread; again only after a transient error."""

    key: str  # content hash: same key, same voice
    load: Callable[[], NDArray[np.float32]]  # float32 mono [samples] at 24 kHz, checked; raises RowError with a reason
    text: str | None = None  # its transcript
    codes: NDArray[np.integer] | None = None  # [frames, 16], when already encoded
    x_vector: NDArray[np.float32] | None = None  # when already computed


@dataclass(frozen=True, slots=True, eq=False)
class SpeechRequest:
    """One clip to make."""

    request_id: str
    text: str
    task: str  # "base" | "custom_voice" | "voice_design"
    seed: int  # 0 .. 2**63 - 1, already derived for this attempt
    max_frames: int  # codec budget: keep up to this many frames, then only an EOS is a "stop"
    sampling: SamplingParams
    language: str | None = None  # None: auto
    speaker: str | None = None
    instruct: str | None = None
    reference: Reference | None = None
    x_vector_only: bool = False
    non_streaming: bool | None = None  # prompt layout; None: the official default of the task


@dataclass(frozen=True, slots=True, eq=False)
class SpeechResult:
    """How one request ended. Each request ends exactly once."""

    request_id: str
    audio: NDArray[np.float32] | None  # float32 mono [samples], owned by the caller
    sample_rate: int
    codes: NDArray[np.integer] | None  # [num_frames, 16]; always there for "length" and "loop"
    num_frames: int
    finish_reason: str  # "stop" | "length" | "loop" | "error" | "cancelled"
    eos: bool  # a codec EOS was sampled
    reason: str | None = None  # one of errors.py's reasons, for "error"
    error: str | None = None  # the sentence that goes with it
    effective: Mapping[str, str] = field(default_factory=dict)  # language, speaker, instruct really applied
    metrics: Mapping[str, float] = field(default_factory=dict)


OnChunk = Callable[[str, int, NDArray[np.float32], bool], None]
"""on_chunk(request_id, index, audio float32 [samples], is_last).

A request's chunks come in order from index 0; together they are its audio. They are of 1, 1, 2, 4, 8, 16 frames, then
of 25; the last may be shorter, or empty. A request that does not end well has no last chunk. Called on the compute
thread, which waits for it; what it raises kills the engine.
"""


@runtime_checkable
class Engine(Protocol):
    """What the toolkit asks of an engine, modelled on vLLM's LLMEngine. Not thread-safe: one thread calls all of it.

    An engine that computes elsewhere (a thread, a process, another library) does so behind these methods. Each request
    ends exactly once, and the audio of its result belongs to the caller.
    """

    sample_rate: int

    @property
    def info(self) -> Mapping[str, str]:
        """What it computes with, for records: runner, dtype, …"""

    @property
    def num_wanted(self) -> int:
        """How many more requests it would like to hold now; at least 1 when idle."""

    def add_request(self, request: SpeechRequest) -> None:
        """Take a request; never blocks, and queues it while no slot is free.

        Raises DuplicateRequest for an id in flight.
        """

    def abort_request(self, request_id: str) -> None:
        """End a request as "cancelled", in any state; does nothing for one that has ended."""

    def step(self, timeout_s: float) -> list[SpeechResult]:
        """Return what has ended since the last call; waits at most `timeout_s` for the first.

        Raises EngineError when the engine is dead: requests without a result have none.
        """

    def close(self) -> None:
        """Free all resources. Requests in flight get no result."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine factory gets. `model` is a local checkpoint folder, already resolved."""

    model: str
    model_revision: str | None = None
    device: str = "auto"  # auto | cpu | cuda | xpu | npu | musa
    dtype: str = "auto"  # auto | float32 | bfloat16
    runner: str | None = None  # "v1" | "v2"; None: what the platform runs
    profile: str | None = None  # basic | b2 | b4 | throughput; None: what the device and runner take
    placement: str = "colocated"  # colocated | split: Code2Wav on a second device
    code2wav_device: str | None = None  # with split: which one, for example "cuda:1"; None: the second that is visible
    cuda_graph: bool = True
    eager: bool = False  # neither CUDA graphs nor Triton kernels: their torch twins, operation by operation
    max_num_seqs: int | None = None  # rows decoded together; None: from the profile and free memory
    max_frames: int | None = None  # longest budget of a request, for which memory is kept; None: 8,192
    code2wav_mode: str = "utterance"  # utterance | chunked
    on_chunk: OnChunk | None = None  # gets audio as it is made, in chunked mode
    stall_timeout_s: float = 30.0  # stall timeout of any stage
    loop_frames: int | None = None  # after how many frames of it a loop ends the request; 0: never; None: the profile's
    cache_dir: str | None = None  # where encoded voices are kept for later engines; None: nowhere
    options: Mapping[str, str] = field(default_factory=dict)  # native: knobs of the profile; others: their own
