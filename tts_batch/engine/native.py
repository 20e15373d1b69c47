"""NativeEngine: our own engine. Opens a checkpoint, picks a runner, and generates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from tts_batch.engine.assemble import assemble
from tts_batch.engine.choices import CODE2WAV_MODES, PLACEMENTS
from tts_batch.engine.devices import Platform, resolve_platform
from tts_batch.engine.errors import EngineConfigError, EngineError
from tts_batch.engine.generation import Generation, Stages
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
        """Raises EngineConfigError when the checkpoint, device or runner asked for cannot be had."""
        _check_modes(config)
        platform = resolve_platform(config)
        resolve_profile(config, platform)  # a wrong name is said before the weights are read
        try:
            checkpoint = resolve_checkpoint(config.model, config.model_revision)
            model = Qwen3TTS.load(checkpoint, platform.device, platform.dtype)
            self._open(model, platform, config)
        except (CheckpointError, WeightsError) as error:
            raise EngineConfigError(str(error)) from error
        except torch.OutOfMemoryError as error:
            raise EngineConfigError(
                f"{platform.device} has too little free memory for this engine: ask for fewer rows at once with "
                f"--max-num-seqs, or for a smaller profile. ({error})"
            ) from error

    @classmethod
    def of_model(cls, model: Qwen3TTS, config: EngineConfig, preparer: Preparer | None = None) -> NativeEngine:
        """An engine on a model that is already there (random weights in a benchmark, say); `config.model` is unused.

        With placement split, the model's codec decoder moves to the second device and stays there. Raises
        EngineConfigError as `NativeEngine` does, and OutOfMemoryError.
        """
        _check_modes(config)
        engine = cls.__new__(cls)
        engine._open(model, resolve_platform(config), config, preparer)
        return engine

    def _open(
        self, model: Qwen3TTS, platform: Platform, config: EngineConfig, preparer: Preparer | None = None
    ) -> None:
        if platform.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # the official waves are of full float32 convolutions
        profile_name, profile = resolve_profile(config, platform)
        preparer = preparer or Preparer(model, _voice_store(model, config), profile.references_together)
        self._stages: Stages | None = assemble(model, platform, profile, config, preparer)
        self._generation: Generation | None = None
        self._closed_because: str | None = None
        self.info = {
            "runner": platform.runner,
            "device": str(platform.device),
            "code2wav_device": str(platform.code2wav_device),
            "dtype": str(platform.dtype).removeprefix("torch."),
            "profile": profile_name,
            "code2wav_mode": config.code2wav_mode,
            **{knob: str(value) for knob, value in asdict(profile).items()},
        }
        if isinstance(self._stages.runner, ContinuousRunner):
            settings = self._stages.runner.settings
            self.info["kv_tokens"] = str(settings.num_pages * settings.page_size)
        logger.info("native engine: %s", ", ".join(f"{name} {value}" for name, value in self.info.items()))

    def generate(self, requests: Iterable[SpeechRequest | None]) -> Iterator[SpeechResult]:
        """Results in completion order. `requests` is advanced on the compute thread, which starts with the first
        `next`. One call at a time; if it raises, the engine is dead."""
        if self._closed_because or self._stages is None:
            raise EngineError(f"this engine is closed: {self._closed_because}.")
        if self._generation is not None:
            raise EngineError("this engine is generating already; finish or close that iterator first.")
        self._generation = generation = Generation(requests, self._stages)
        try:
            yield from generation.results()
        except EngineError as error:
            self._closed_because = str(error).rstrip(".")
            raise
        finally:
            if not generation.stopped:
                self._closed_because = "its compute thread did not stop"
            self._generation = None

    def cancel(self, request_id: str) -> None:
        """End a request in flight as "cancelled"; one that has ended, or was never pulled, is left alone."""
        generation = self._generation
        if generation is not None:
            generation.cancel(request_id)

    def read_meter(self) -> Reading:
        """Where the time went since the engine was opened. Not while it generates; raises EngineError once closed."""
        if self._stages is None:
            raise EngineError(f"this engine is closed: {self._closed_because}.")
        return self._stages.meter.read()

    def close(self) -> None:
        """Stop computing and give the memory back. What was not returned stays pending."""
        generation = self._generation
        if generation is not None:
            generation.close()
        self._closed_because = self._closed_because or "close() was called"
        if self._stages is not None:
            self._stages.preparer.close()
        self._stages = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


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
