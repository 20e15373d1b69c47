"""check_parity: whether the official qwen_tts package and this engine make the same greedy clips of a checkpoint.

The package needs an older transformers than this engine, so it usually has an environment of its own; that
environment's interpreter runs it (run_official.py). Codes must be equal up to a near tie, where rounding decides;
waveforms are compared in float32, where the package's codec computes as ours does.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.doctor import Finding
from tts_batch.doctor.checkpoint import voice_samples
from tts_batch.engine.errors import EngineError
from tts_batch.engine.generation import generate
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import (
    SAMPLE_RATE_HZ,
    EngineConfig,
    Reference,
    SamplingParams,
    SpeechRequest,
    SpeechResult,
)
from tts_batch.model.checkpoint import Checkpoint

NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.5}  # of logits
WAVE_TOLERANCE = 5e-5
MAX_FRAMES = 50
TIMEOUT_S = 3600

# No word here is split otherwise by the pattern that transformers 4.57 puts in the place of Qwen's.
TEXT = "Hello world, this is a small test."
LONG_TEXT = "The quick brown fox jumps over the lazy dog, and nobody knows why it does."
CHINESE_TEXT = "今天天气很好，我们一起去公园吧。"
REF_TEXT = "This is the reference text."
REF_SECONDS = 2.03  # no whole number of frames

Probes = Mapping[str, Mapping[str, Any]]

PROBES: Mapping[str, Probes] = {
    "base": {
        "in-context clone": {"text": TEXT, "language": "english"},
        "x-vector clone": {"text": LONG_TEXT, "language": "english", "x_vector_only": True},
        "whole text first": {"text": CHINESE_TEXT, "non_streaming": True},
    },
    "custom_voice": {
        "instructed": {"text": TEXT, "language": "english", "speaker": "ryan", "instruct": "Say it happily."},
        "dialect speaker": {"text": CHINESE_TEXT, "speaker": "eric"},
        "streamed text": {"text": LONG_TEXT, "language": "english", "speaker": "vivian", "non_streaming": False},
    },
    "voice_design": {
        "designed": {"text": TEXT, "language": "english", "instruct": "A deep male voice."},
        "streamed text": {"text": LONG_TEXT, "language": "english", "instruct": "A calm, warm and low voice.",
                          "non_streaming": False},
    },
}  # fmt: skip
"""The clips to make with both: of each kind, by a label, the fields of a SpeechRequest."""


class OfficialPackageError(Exception):
    """The official package could not be run. The message says why."""


def check_parity(
    checkpoint: Checkpoint, device: str, dtype: str, official_python: str, max_frames: int = MAX_FRAMES
) -> Iterator[Finding]:
    """Make greedy clips of the checkpoint's kind with both, one after another, and compare them.

    `device` is a torch device or "auto", `dtype` "float32" or "bfloat16"; `official_python` is the interpreter that has
    the package.
    """
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    probes = PROBES[checkpoint.config.kind]
    try:
        official = generate_official(checkpoint.path, probes, device, dtype, official_python, max_frames)
        ours = _generate_ours(checkpoint, probes, device, dtype, max_frames)
    except OfficialPackageError as error:
        yield Finding("problem", "official", str(error))
        return
    except EngineError as error:
        yield Finding("problem", "parity", str(error))
        return
    yield Finding("ok", "official", str(official["versions"]))
    for i, label in enumerate(probes):
        arrays = (official[f"{name}_{i}"] for name in ("codes", "margin", "wave"))
        is_same, detail = _compare(ours[label], dtype, *arrays)
        yield Finding("ok" if is_same else "problem", "parity", f"{label}: {detail}")


def _compare(
    ours: SpeechResult, dtype: str, codes: NDArray[np.integer], margin: NDArray[np.floating], wave: NDArray[np.floating]
) -> tuple[bool, str]:
    """Compare a result with official `codes` [frames, 16], `margin` [frames + 1] and `wave` [samples].

    Return whether rounding explains every difference, and a description.
    """
    if ours.codes is None or ours.audio is None:
        return False, f"this engine made no clip: {ours.error}"
    same = min(len(codes), len(ours.codes))
    differs = np.flatnonzero((ours.codes[:same] != codes[:same]).any(axis=1))
    if differs.size or len(codes) != len(ours.codes):
        same = int(differs[0]) if differs.size else same
        is_tie = bool(margin[same] < NEAR_TIE[dtype])
        tie = ", a near tie" if is_tie else ""
        return is_tie, f"{same} of {len(codes)} frames are the same; the next has a margin of {margin[same]:.1g}{tie}"
    all_same = f"all {len(codes)} frames are the same"
    more = len(wave) - len(ours.audio)
    if more not in (0, 1):  # the official cut after the reference may leave a sample of it
        return dtype != "float32", f"{all_same}, different lengths"
    error = float(np.abs(wave[more:] - ours.audio).max(initial=0.0))
    return dtype != "float32" or error <= WAVE_TOLERANCE, f"{all_same}, waves within {error:.1g}"


def generate_official(
    model_dir: Path, probes: Probes, device: str, dtype: str, python: str, max_frames: int
) -> dict[str, NDArray[Any]]:
    """Return the arrays that run_official.py writes, run by the interpreter `python`.

    Raises OfficialPackageError.
    """
    with tempfile.TemporaryDirectory(prefix="tts-batch-official-") as scratch:
        clip, job, outputs = (Path(scratch) / name for name in ("reference.wav", "job.json", "outputs.npz"))
        _write_reference(clip)
        calls = [_official_call(probe, clip, max_frames) for probe in probes.values()]
        content = {"model": str(model_dir.resolve()), "device": device, "dtype": dtype, "calls": calls}
        job.write_text(json.dumps(content), encoding="utf-8")
        try:
            run = subprocess.run(
                [python, "-", job, outputs],
                input=Path(__file__).with_name("run_official.py").read_text(encoding="utf-8"),
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OfficialPackageError(f"{python} could not run the qwen_tts package: {error}") from error
        if run.returncode != 0:
            last_line = (run.stderr.strip() or "no message").splitlines()[-1]
            raise OfficialPackageError(
                f"{python} could not run the qwen_tts package: {last_line}. Install qwen-tts into an environment of "
                "its own and name its interpreter with --official-python."
            )
        with np.load(outputs) as arrays:
            return dict(arrays)


def _official_call(probe: Mapping[str, Any], clip: Path, max_frames: int) -> dict[str, Any]:
    names = {"text": "text", "speaker": "speaker", "instruct": "instruct", "non_streaming": "non_streaming_mode"}
    arguments = {names[field]: value for field, value in probe.items() if field in names}
    arguments |= {"language": probe.get("language"), "max_new_tokens": max_frames + 1}
    arguments |= {"do_sample": False, "subtalker_dosample": False}
    if "speaker" in probe:
        return {"fn": "generate_custom_voice", "kwargs": arguments}
    if "instruct" in probe:
        return {"fn": "generate_voice_design", "kwargs": arguments}
    alone = probe.get("x_vector_only", False)
    arguments |= {"ref_audio": str(clip), "ref_text": None if alone else REF_TEXT, "x_vector_only_mode": alone}
    return {"fn": "generate_voice_clone", "kwargs": arguments}


def _generate_ours(
    checkpoint: Checkpoint, probes: Probes, device: str, dtype: str, max_frames: int
) -> dict[str, SpeechResult]:
    # The rest is the checkpoint's own, as in the official package: a repetition penalty changes greedy clips too.
    sampling = SamplingParams(**checkpoint.generation | {"do_sample": False, "subtalker_dosample": False})
    kind = checkpoint.config.kind
    reference = Reference("probe", lambda: voice_samples(REF_SECONDS), REF_TEXT) if kind == "base" else None
    requests = [
        SpeechRequest(label, task=kind, seed=0, max_frames=max_frames, sampling=sampling, reference=reference, **probe)
        for label, probe in probes.items()
    ]
    engine = open_engine("native", EngineConfig(str(checkpoint.path), device=device, dtype=dtype))
    try:
        return {result.request_id: result for result in generate(engine, requests)}
    finally:
        engine.close()


def _write_reference(path: Path) -> None:
    import soundfile

    soundfile.write(path, voice_samples(REF_SECONDS), SAMPLE_RATE_HZ, subtype="PCM_16")
