"""The stages of a native engine on a tiny checkpoint, for tests that look into them while a compute loop runs."""

from __future__ import annotations

from tts_batch.engine.assemble import assemble
from tts_batch.engine.compute_loop import Stages
from tts_batch.engine.devices import resolve_platform
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.profiles import resolve_profile
from tts_batch.engine.request import EngineConfig
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny


def tiny_stages(kind: str = "custom_voice", device: str = "cpu", **settings: object) -> Stages:
    """As NativeEngine would assemble them, on the tiny-random checkpoint of a kind."""
    config = EngineConfig(model=str(build_tiny("tiny-random", kind)), device=device, **settings)  # type: ignore[arg-type]
    platform = resolve_platform(config)
    _, profile = resolve_profile(config, platform)
    model = Qwen3TTS.load(resolve_checkpoint(config.model), platform.device, platform.dtype)
    return assemble(model, platform, profile, config, Preparer(model, None, profile.references_together))
