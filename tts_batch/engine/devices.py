"""Where and how to compute: device, dtype and runner, resolved from the configuration and the hardware."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass

import torch

from tts_batch.engine.choices import DEVICES, DTYPES, RUNNERS
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.request import EngineConfig

logger = logging.getLogger(__name__)

PLUGINS = {"npu": "torch_npu", "musa": "torch_musa"}  # devices that torch learns from a package of their maker


@dataclass(frozen=True, slots=True)
class Platform:
    """What an engine computes with."""

    device: torch.device
    dtype: torch.dtype
    runner: str
    split_device: torch.device | None = None  # Code2Wav's own; None: it shares `device`

    @property
    def code2wav_device(self) -> torch.device:
        return self.split_device or self.device

    @property
    def default_profile(self) -> str:
        return "throughput" if self.runner == "v2" and self.device.type == "cuda" else "basic"


def resolve_platform(config: EngineConfig) -> Platform:
    """Raises EngineConfigError when something that was requested explicitly is unavailable."""
    device = _resolve_device(config.device)
    dtype, runner = _resolve_dtype(config.dtype, device), _resolve_runner(config.runner, device)
    return Platform(device, dtype, runner, _resolve_split_device(config, device))


def has_kernels(device: torch.device) -> bool:
    """Whether Triton compiles for the tensor cores of a CUDA device: sm80 and later, and all of AMD's."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def free_bytes(device: torch.device) -> int:
    """What this process may still allocate on a CUDA device: what is free, within a fraction that torch was set to."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index  # torch takes no other form here
    fraction = torch.cuda.get_per_process_memory_fraction(index)
    return min(free, int(fraction * total) - torch.cuda.memory_reserved(device))


def describe_memory(device: torch.device) -> str:
    """A device in words; a CUDA card with its name and free memory."""
    if device.type != "cuda":
        return str(device)
    return f"{describe_card(device)} has {free_bytes(device) / 2**30:.1f} GiB free"


def describe_card(device: torch.device) -> str:
    """A CUDA device and the name of its card."""
    return f"{device} ({torch.cuda.get_device_name(device)})"


def _resolve_device(asked: str) -> torch.device:
    if asked == "auto":
        return torch.device(next((name for name in ("cuda", "xpu") if _is_available(name)), "cpu"))
    if asked not in DEVICES:
        raise EngineConfigError(f"device {asked!r} is not one of {', '.join(DEVICES)}.")
    if not _is_available(asked):
        raise EngineConfigError(
            f"device {asked!r} is unavailable: torch {torch.__version__} finds none here; use --device auto."
        )
    return torch.device(asked)


def _is_available(device: str) -> bool:
    if device == "cpu":
        return True
    if device in PLUGINS:
        try:
            importlib.import_module(PLUGINS[device])
        except ImportError:
            return False
    backend = getattr(torch, device, None)
    return backend is not None and bool(backend.is_available())


def _resolve_dtype(asked: str, device: torch.device) -> torch.dtype:
    if asked not in DTYPES:
        raise EngineConfigError(f"dtype {asked!r} is not one of {', '.join(DTYPES)}.")
    if asked != "auto":
        return getattr(torch, asked)
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)  # in hardware
    else:
        has_bfloat16 = device.type != "cpu"
    return torch.bfloat16 if has_bfloat16 else torch.float32


def _resolve_runner(asked: str | None, device: torch.device) -> str:
    if asked is None:
        runner = "v2" if device.type == "cuda" and torch.version.hip is None and has_kernels(device) else "v1"
        reason = "the default" if device.type != "cuda" or has_kernels(device) else "the kernels of v2 need sm80"
        logger.info("runner %s: %s on %s", runner, reason, device)
        return runner
    if asked not in RUNNERS:
        raise EngineConfigError(f"runner {asked!r} is not one of {', '.join(RUNNERS)}.")
    if asked == "v2" and device.type not in ("cpu", "cuda"):
        raise EngineConfigError(f"runner v2 runs on cuda and cpu, not on {device.type}; use --runner v1.")
    return asked


def _resolve_split_device(config: EngineConfig, device: torch.device) -> torch.device | None:
    asked = config.code2wav_device
    if config.placement != "split":
        if asked is not None:
            raise EngineConfigError(f"code2wav_device {asked!r} goes with placement 'split' only.")
        return None
    count = getattr(torch, device.type).device_count()
    if asked is None:
        if count < 2:
            raise EngineConfigError(
                f"placement 'split' needs two devices, and torch sees {count} ({device.type}): leave it at colocated."
            )
        return torch.device(device.type, 1)
    kind, _, index = asked.partition(":")
    if kind != device.type:
        raise EngineConfigError(f"code2wav_device {asked!r} is no second {device.type} device.")
    if kind == "cpu":  # on a CPU, for tests: one device serves as both
        return torch.device(kind)
    if index not in map(str, range(1, count)):
        raise EngineConfigError(
            f"code2wav_device {asked!r} is not a second device: torch sees {count}, and the talker has the first."
        )
    return torch.device(kind, int(index))
