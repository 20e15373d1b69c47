"""NativeEngine: our own engine. Opens a checkpoint, picks a runner, and computes on a thread of its own."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from tts_batch.engine.assemble import assemble, require_memory
from tts_batch.engine.choices import CODE2WAV_MODES, PLACEMENTS
from tts_batch.engine.compute_loop import ComputeLoop
from tts_batch.engine.devices import Platform, describe_memory, resolve_platform
from tts_batch.engine.errors import EngineConfigError, EngineError
from tts_batch.engine.memory_errors import is_out_of_memory
from tts_batch.engine.meter import Reading
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.profiles import resolve_profile
from tts_batch.engine.request import SAMPLE_RATE_HZ, EngineConfig, SpeechRequest, SpeechResult
from tts_batch.engine.v2.runner import ContinuousRunner
from tts_batch.engine.voices.store import VoiceStore
from tts_batch.model.checkpoint import CheckpointError, resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.weights import WeightsError

logger = logging.getLogger(__name__)


class NativeEngine:
    """An Engine. `info` says what it computes with: runner, device, dtype, profile, and every knob as resolved."""

    sample_rate = SAMPLE_RATE_HZ

    def __init__(self, config: EngineConfig) -> None:
        """Raises EngineConfigError when the checkpoint, device or runner is unavailable."""
        _check_modes(config)
        platform = resolve_platform(config)
        resolve_profile(config, platform)  # a wrong name is reported before the weights are read
        try:
            checkpoint = resolve_checkpoint(config.model, config.model_revision)
            with out_of_memory_reported(platform):
                require_memory(checkpoint.config, checkpoint.codec, platform, config)
                model = Qwen3TTS.load(checkpoint, platform.device, platform.dtype)
                self._open(model, platform, config, owns_model=True)
        except (CheckpointError, WeightsError) as error:
            raise EngineConfigError(str(error)) from error

    @classmethod
    def of_model(
        cls, model: Qwen3TTS, config: EngineConfig, preparer: Preparer | None = None, owns_model: bool = False
    ) -> NativeEngine:
        """An engine on a model that is already loaded, with random weights for example; `config.model` is unused.

        With `owns_model`, weights that it does not read are freed, and the model serves no other engine.

        With placement split, the model's codec decoder moves to the second device and stays there. Raises
        EngineConfigError as `NativeEngine` does.
        """
        _check_modes(config)
        engine = cls.__new__(cls)
        with out_of_memory_reported(platform := resolve_platform(config)):
            engine._open(model, platform, config, preparer, owns_model)
        return engine

    def _open(
        self,
        model: Qwen3TTS,
        platform: Platform,
        config: EngineConfig,
        preparer: Preparer | None = None,
        owns_model: bool = False,
    ) -> None:
        if platform.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # the official waves are of full float32 convolutions
        profile_name, profile = resolve_profile(config, platform)
        preparer = preparer or Preparer(model, _voice_store(model, config), profile.references_together)
        stages = assemble(model, platform, profile, config, preparer, owns_model)
        self.info = {
            "runner": platform.runner,
            "device": str(platform.device),
            "code2wav_device": str(platform.code2wav_device),
            "dtype": str(platform.dtype).removeprefix("torch."),
            "profile": profile_name,
            "code2wav_mode": config.code2wav_mode,
            **{knob: str(value) for knob, value in asdict(profile).items()},
        }
        if stages.sizes is not None:
            self.info |= {name: str(size) for name, size in asdict(stages.sizes).items()}
        if isinstance(stages.runner, ContinuousRunner):
            settings = stages.runner.settings
            self.info["kv_tokens"] = str(settings.num_pages * settings.page_size)
        logger.info("native engine: %s", ", ".join(f"{name} {value}" for name, value in self.info.items()))
        self._loop: ComputeLoop | None = ComputeLoop(stages)
        self._close = weakref.finalize(
            self, _close, self._loop, preparer
        )  # also when the engine is collected without having been closed

    @property
    def num_wanted(self) -> int:
        """How many more requests it would like to hold now; 0 when it is dead or closed."""
        return 0 if self._loop is None else self._loop.num_wanted

    def add_request(self, request: SpeechRequest) -> None:
        """Take a request. Raises DuplicateRequest for an id in flight, EngineError when the engine is dead."""
        self._open_loop.add_request(request)

    def abort_request(self, request_id: str) -> None:
        """End a request in flight as "cancelled"; does nothing for any other."""
        if self._loop is not None:
            self._loop.abort_request(request_id)

    def step(self, timeout_s: float) -> list[SpeechResult]:
        """What has ended since the last call, after at most `timeout_s`; it may return nothing earlier, when it wants
        requests again. Raises EngineError when the engine is dead or closed."""
        return self._open_loop.step(timeout_s)

    def read_meter(self) -> Reading:
        """The times since the engine was opened, by stage.

        Raises EngineError while requests are in flight, and when the engine is dead or closed.
        """
        return self._open_loop.read_meter()

    def close(self) -> None:
        """Stop computing and free the memory. Requests in flight get no result."""
        self._loop = None
        self._close()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @property
    def _open_loop(self) -> ComputeLoop:
        if self._loop is None:
            raise EngineError("this engine is closed.")
        return self._loop


@contextmanager
def out_of_memory_reported(platform: Platform) -> Iterator[None]:
    """Turn every form of out of memory into an EngineConfigError that says what helps."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        cause = str(error).partition("\n")[0][:200]
        raise EngineConfigError(
            f"{describe_memory(platform.device)}, too little free memory for this engine: use a 0.6B model, a "
            f"smaller --profile or fewer rows with --max-num-seqs, or end other programs on it. ({cause})"
        ) from error


def _close(loop: ComputeLoop, preparer: Preparer) -> None:
    loop.close()
    preparer.close()


def _voice_store(model: Qwen3TTS, config: EngineConfig) -> VoiceStore | None:
    if config.cache_dir is None or model.config.kind != "base":
        return None
    return VoiceStore(Path(config.cache_dir) / "voices", model)


def _check_modes(config: EngineConfig) -> None:
    if config.code2wav_mode not in CODE2WAV_MODES:
        raise EngineConfigError(f"code2wav_mode {config.code2wav_mode!r} is not one of {', '.join(CODE2WAV_MODES)}.")
    if config.max_num_seqs is not None and config.max_num_seqs < 1:
        raise EngineConfigError(f"max_num_seqs cannot be {config.max_num_seqs}: it is at least 1.")
    if not config.stall_timeout_s > 0:
        raise EngineConfigError(f"stall_timeout_s cannot be {config.stall_timeout_s}: it is above 0.")
    if config.placement not in PLACEMENTS:
        raise EngineConfigError(
            f"placement {config.placement!r} is not one of {', '.join(PLACEMENTS)}: a model is never cut into a "
            "pipeline or into tensor shards; use more GPUs as replicas, with --gpus."
        )
