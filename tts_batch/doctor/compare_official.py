"""check_parity: whether the official qwen_tts package and this engine make the same greedy clips of a checkpoint.

The package needs an older transformers than this engine, so it usually has an environment of its own; that
environment's interpreter runs it (run_official.py). Codes must be equal up to a near tie, where rounding decides;
waveforms are compared in float32, where the package's codec computes as ours does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.doctor.finding import Finding
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
from tts_batch.model.checkpoint import Checkpoint, resolve_checkpoint

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


class OfficialPackageError(Exception):
    """The official package could not be run. The message says why."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One clip to make with both."""

    label: str
    text: str
    language: str | None = None
    speaker: str | None = None
    instruct: str | None = None
    x_vector_only: bool = False
    non_streaming: bool | None = None


PROBES = {
    "base": (
        Probe("in-context clone", TEXT, "english"),
        Probe("x-vector clone", LONG_TEXT, "english", x_vector_only=True),
        Probe("whole text first", CHINESE_TEXT, non_streaming=True),
    ),
    "custom_voice": (
        Probe("instructed", TEXT, "english", "ryan", instruct="Say it happily."),
        Probe("dialect speaker", CHINESE_TEXT, None, "eric"),
        Probe("streamed text", LONG_TEXT, "english", "vivian", non_streaming=False),
    ),
    "voice_design": (
        Probe("designed", TEXT, "english", instruct="A deep male voice."),
        Probe("streamed text", LONG_TEXT, "english", instruct="A calm, warm and low voice.", non_streaming=False),
    ),
}


@dataclass(frozen=True, slots=True)
class ClipComparison:
    """How the two clips of one probe compare."""

    label: str
    num_frames: int  # of the official package
    same_frames: int  # before the first that differs, or all
    margin: float | None  # the official gap at the first frame that differs
    wave_error: float | None  # largest difference of a sample; None unless all codes are the same
    dtype: str

    @property
    def ok(self) -> bool:
        """Whether rounding explains every difference."""
        if self.margin is not None:
            return self.margin < NEAR_TIE[self.dtype]
        return self.dtype != "float32" or (self.wave_error is not None and self.wave_error <= WAVE_TOLERANCE)

    def __str__(self) -> str:
        if self.margin is not None:
            where = f"{self.same_frames} of {self.num_frames} frames are the same; the next has a margin of"
            return f"{self.label}: {where} {self.margin:.1g}{', a near tie' if self.ok else ''}"
        wave = "different lengths" if self.wave_error is None else f"waves within {self.wave_error:.1g}"
        return f"{self.label}: all {self.num_frames} frames are the same, {wave}"


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The comparisons of all probes of a checkpoint."""

    versions: str  # of the official package, transformers and torch
    comparisons: tuple[ClipComparison, ...]

    @property
    def ok(self) -> bool:
        """Whether this engine and the official package agree."""
        return all(comparison.ok for comparison in self.comparisons)

    def findings(self) -> Iterator[Finding]:
        """Yield the report as findings."""
        yield Finding("ok", "official", self.versions)
        for comparison in self.comparisons:
            yield Finding("ok" if comparison.ok else "problem", "parity", str(comparison))


def check_parity(checkpoint: Checkpoint, device: str, dtype: str, official_python: str) -> Iterator[Finding]:
    """Compare the clips of `compare_official`, and say what kept them from being made."""
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        yield from compare_official(checkpoint.path, device, dtype, official_python=official_python).findings()
    except OfficialPackageError as error:
        yield Finding("problem", "official", str(error))
    except EngineError as error:
        yield Finding("problem", "parity", str(error))


def compare_official(
    model_dir: Path,
    device: str = "cpu",
    dtype: str = "float32",
    *,
    official_python: str = sys.executable,
    max_frames: int = MAX_FRAMES,
) -> ParityReport:
    """Make greedy clips of the checkpoint's kind with both, one after another, and compare them.

    `device` is a torch device, `dtype` "float32" or "bfloat16". Raises OfficialPackageError when the package cannot be
    run, and EngineError when this engine cannot.
    """
    kind = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))["tts_model_type"]
    probes = PROBES[kind]
    official = generate_official(model_dir, probes, device, dtype, official_python, max_frames)
    ours = _generate_ours(model_dir, kind, device, dtype, max_frames)
    comparisons = [
        compare(probe.label, ours[i], official[f"codes_{i}"], official[f"margin_{i}"], official[f"wave_{i}"], dtype)
        for i, probe in enumerate(probes)
    ]
    return ParityReport(str(official["versions"]), tuple(comparisons))


def compare(
    label: str,
    ours: SpeechResult,
    codes: NDArray[np.integer],
    margin: NDArray[np.floating],
    wave: NDArray[np.floating],
    dtype: str,
) -> ClipComparison:
    """Compare a result with official `codes` [frames, 16], `margin` [frames + 1] and `wave` [samples]."""
    if ours.codes is None or ours.audio is None:
        raise OfficialPackageError(f"{label}: this engine made no clip: {ours.error}")
    same = min(len(codes), len(ours.codes))
    differs = np.flatnonzero((ours.codes[:same] != codes[:same]).any(axis=1))
    same = int(differs[0]) if differs.size else same
    if differs.size or len(codes) != len(ours.codes):
        return ClipComparison(label, len(codes), same, float(margin[same]), None, dtype)
    error = None
    if len(wave) - len(ours.audio) in (0, 1):  # the official cut after the reference may leave a sample of it
        error = float(np.abs(wave[len(wave) - len(ours.audio) :] - ours.audio).max(initial=0.0))
    return ClipComparison(label, len(codes), same, None, error, dtype)


def generate_official(
    model_dir: Path, probes: tuple[Probe, ...], device: str, dtype: str, python: str, max_frames: int
) -> dict[str, NDArray[Any]]:
    """Return the arrays that run_official.py writes, run by the interpreter `python`.

    Raises OfficialPackageError.
    """
    with tempfile.TemporaryDirectory(prefix="tts-batch-official-") as scratch:
        clip, job, outputs = (Path(scratch) / name for name in ("reference.wav", "job.json", "outputs.npz"))
        _write_reference(clip)
        calls = [_official_call(probe, clip, max_frames) for probe in probes]
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


def _official_call(probe: Probe, clip: Path, max_frames: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "text": probe.text,
        "language": probe.language,
        "max_new_tokens": max_frames + 1,
        "do_sample": False,
        "subtalker_dosample": False,
    }
    if probe.non_streaming is not None:
        arguments["non_streaming_mode"] = probe.non_streaming
    if probe.speaker:
        return {"fn": "generate_custom_voice", "kwargs": arguments | _given(probe, "speaker", "instruct")}
    if probe.instruct:
        return {"fn": "generate_voice_design", "kwargs": arguments | _given(probe, "instruct")}
    reference = {"ref_audio": str(clip), "ref_text": None if probe.x_vector_only else REF_TEXT}
    return {"fn": "generate_voice_clone", "kwargs": arguments | reference | {"x_vector_only_mode": probe.x_vector_only}}


def _given(probe: Probe, *names: str) -> dict[str, str]:
    return {name: value for name in names if (value := getattr(probe, name)) is not None}


def _generate_ours(model_dir: Path, kind: str, device: str, dtype: str, max_frames: int) -> list[SpeechResult]:
    # The rest is the checkpoint's own, as in the official package: a repetition penalty changes greedy clips too.
    settings = resolve_checkpoint(str(model_dir)).generation | {"do_sample": False, "subtalker_dosample": False}
    requests = [
        SpeechRequest(
            request_id=str(i),
            text=probe.text,
            task=kind,
            seed=0,
            max_frames=max_frames,
            sampling=SamplingParams(**settings),
            language=probe.language,
            speaker=probe.speaker,
            instruct=probe.instruct,
            reference=Reference("probe", _reference_samples, REF_TEXT) if kind == "base" else None,
            x_vector_only=probe.x_vector_only,
            non_streaming=probe.non_streaming,
        )
        for i, probe in enumerate(PROBES[kind])
    ]
    engine = open_engine("native", EngineConfig(str(model_dir), device=device, dtype=dtype))
    try:
        results = {result.request_id: result for result in generate(engine, requests)}
    finally:
        engine.close()
    return [results[request.request_id] for request in requests]


def _reference_samples() -> NDArray[np.float32]:
    """A voice-like sound on 16-bit steps, so that a WAV file holds exactly these samples: float32 at 24 kHz."""
    t = np.arange(round(REF_SECONDS * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    phase = 2 * np.pi * np.cumsum(130 * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * t))) / SAMPLE_RATE_HZ
    voice = sum(np.sin(k * phase) / k for k in range(1, 20)) * (0.2 + np.abs(np.sin(2 * np.pi * 1.6 * t)))
    return (np.round(8_000 * voice) / 32_768).astype(np.float32)


def _write_reference(path: Path) -> None:
    import soundfile

    soundfile.write(path, _reference_samples(), SAMPLE_RATE_HZ, subtype="PCM_16")
