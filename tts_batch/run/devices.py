"""Which devices a run may use: one token for each worker, found without loading torch into this process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field

from tts_batch.errors import CannotContinueError, UsageError

VISIBLE = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "musa": "MUSA_VISIBLE_DEVICES",
}
"""The variable by which each kind of device is narrowed down to the worker's own."""

PROBE_TIMEOUT_S = 120.0
_PROBE = """
import json, torch
for kind in ("cuda", "xpu", "npu", "musa"):
    module = getattr(torch, kind, None)
    if module is not None and module.is_available():
        print(json.dumps([kind, module.device_count()]))
        break
else:
    print(json.dumps(["cpu", 1]))
"""


@dataclass(frozen=True, slots=True)
class Device:
    """Where one worker runs, and the environment variables that show it nothing else."""

    kind: str
    environment: dict[str, str] = field(default_factory=dict)


def find_devices(kind: str, gpus: tuple[int, ...] | None = None, placement: str = "colocated") -> list[Device]:
    """Return a device for each worker, or a pair with placement split: every visible one, or those at `gpus`.

    Tokens in the kind's variable are passed on as they are (numbers, UUIDs, MIG names). Raises UsageError for a
    choice that does not exist, or does not make pairs.
    """
    tokens: list[str] | None = None
    if kind in VISIBLE:
        tokens = _visible_tokens(kind)
    if kind == "auto" or (kind in VISIBLE and tokens is None):
        kind, tokens = _probe(kind)
    if kind == "cpu" or tokens is None:
        if placement == "split":
            raise UsageError("--placement split needs pairs of GPUs, and this run uses the CPU. Leave it out.")
        if gpus is not None:
            raise UsageError("--gpus picks among GPUs, and this run uses the CPU. Leave it out, or give --device.")
        return [Device("cpu")]
    return [Device(kind, {VISIBLE[kind]: ",".join(group)}) for group in _grouped(_picked(tokens, gpus), placement)]


def _picked(tokens: list[str], positions: tuple[int, ...] | None) -> list[str]:
    if positions is None:
        return tokens
    beyond = [position for position in positions if not 0 <= position < len(tokens)]
    if beyond or len(set(positions)) < len(positions):
        raise UsageError(
            f"--gpus {','.join(map(str, positions))} must name different positions from 0 to {len(tokens) - 1} among "
            f"the {len(tokens)} visible devices: {', '.join(tokens)}."
        )
    return [tokens[position] for position in positions]


def _grouped(tokens: list[str], placement: str) -> list[list[str]]:
    size = 2 if placement == "split" else 1
    if len(tokens) % size:
        raise UsageError(
            f"--placement split needs pairs of devices, and {len(tokens)} cannot be paired ({', '.join(tokens)}): "
            "choose with --gpus, or leave it out."
        )
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def _visible_tokens(kind: str) -> list[str] | None:
    """Return the devices that the kind's variable names; None when it is not set."""
    value = os.environ.get(VISIBLE[kind])
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    tokens = _as_cuda_reads(parts, value) if kind == "cuda" else [part for part in parts if part]
    if not tokens:
        raise UsageError(f"--device {kind}, but {VISIBLE[kind]} is {value!r}: no such device is visible.")
    return tokens


_INDEX = re.compile(r"\+?\d+")
_UUID = re.compile(r"(GPU|MIG)-.+")


def _as_cuda_reads(parts: list[str], value: str) -> list[str]:
    """Return the devices of CUDA_VISIBLE_DEVICES: those before the first that names none, such as -1 or nothing.

    Raises UsageError for one that is named twice, with which CUDA shows no device at all.
    """
    tokens: list[str] = []
    for part in parts:
        index = _INDEX.match(part)
        if index is None and not _UUID.fullmatch(part):
            break
        token = str(int(index[0])) if index else part  # "1gpu" is 1
        if token in tokens:
            raise UsageError(
                f"CUDA_VISIBLE_DEVICES is {value!r}, which names {token} twice: CUDA shows no device then."
            )
        tokens.append(token)
    return tokens


def _probe(wanted: str) -> tuple[str, list[str] | None]:
    """Ask a process of its own what torch sees, so that this one never touches a device."""
    command = [sys.executable, "-c", _PROBE]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
        kind, count = json.loads(answer.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise CannotContinueError(f"torch could not be asked for its devices: {said[-1] if said else error}") from error
    if wanted not in ("auto", kind):
        raise UsageError(f"--device {wanted}, but torch sees no such device (it sees: {kind}).")
    if kind == "cpu":
        return kind, None
    return kind, _visible_tokens(kind) or [str(number) for number in range(count)]
