"""Whether two stages fit beside what the GPUs hold already: vLLM takes shares of the whole memory, not of the free."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess

from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.vllm.settings import Settings

logger = logging.getLogger(__name__)

ANSWER_S = 20.0
RESERVE = 0.02  # of the memory: CUDA contexts beside the shares


def check_memory(settings: Settings) -> None:
    """Raises EngineConfigError that names both shares and one that would fit. Without nvidia-smi nothing is checked."""
    tokens = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if settings.is_split else [_first_device()]
    num_stages = 1 if settings.is_split else 2
    for token in tokens[:2]:
        memory = _read_memory(token.strip() or "0")
        if memory is None:
            continue
        total_mib, free_mib = memory
        share = settings.gpu_memory_utilization
        if num_stages * share * total_mib <= free_mib:
            continue
        fitting = int(100 * (free_mib / total_mib - RESERVE) / num_stages) / 100
        advice = (
            f"--engine-option gpu_memory_utilization={fitting:g} would fit"
            if fitting >= 0.05
            else "end what else uses it, or choose another with --gpus"
        )
        raise EngineConfigError(
            f"engine vllm: GPU {token or '0'} has {free_mib / 1024:.1f} of {total_mib / 1024:.1f} GiB free, and "
            f"{' and '.join([f'{share:g}'] * num_stages)} of the whole for its {num_stages} stage"
            f"{'s' if num_stages > 1 else ''} are {num_stages * share * total_mib / 1024:.1f} GiB: {advice}."
        )


def _first_device() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def _read_memory(device: str) -> tuple[float, float] | None:
    """Total and free MiB of a GPU by its number or UUID; None when nvidia-smi cannot say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "-i", device, "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
        total, free = (float(cell) for cell in answer.strip().splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        logger.warning("the memory of GPU %s is not known: %s", device, error)
        return None
    return total, free
