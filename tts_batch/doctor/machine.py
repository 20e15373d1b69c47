"""check_machine: the packages, devices, sound libraries and folders that a run needs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata

from huggingface_hub import constants
from packaging.requirements import Requirement

from tts_batch.cache import VARIABLE, find_cache_folder
from tts_batch.doctor import Finding
from tts_batch.engine.vllm.versions import RAN_WITH, describe_tested, find_problem, find_versions


def check_machine() -> Iterator[Finding]:
    """Check everything that needs no checkpoint, one finding after another. Nothing is written."""
    yield Finding("ok", "python", sys.version.split()[0])
    yield from _check_packages()
    yield _check_vllm()
    yield from _check_devices()
    yield from _check_sound()
    yield from _check_folders()


def _check_packages() -> Iterator[Finding]:
    for line in metadata.requires("tts-batch") or []:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"wanted: {requirement.specifier}" if requirement.specifier else "any version"
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Finding("problem", requirement.name, f"not installed, {wanted}")
            continue
        fits = requirement.specifier.contains(found, prereleases=True)
        yield Finding("ok" if fits else "problem", requirement.name, f"{found}, {wanted}")


def _check_vllm() -> Finding:
    found = find_versions()
    tried = f"written for {describe_tested()}, which ran with {RAN_WITH}"
    if (problem := find_problem(found)) is not None:
        return Finding("note", "engine vllm", f"cannot start: {problem} ({tried})")
    return Finding("ok", "engine vllm", f"{', '.join(f'{name} {version}' for name, version in found.items())}; {tried}")


def _check_devices() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: of a library that it loads
        yield Finding("problem", "torch", f"cannot be imported: {error}")
        return
    yield Finding("ok", "cpu", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        yield Finding("note", "accelerator", "torch finds none: runs use the CPU")
        return
    for index in range(torch.accelerator.device_count()):
        detail = torch.cuda.get_device_properties(index) if kind.type == "cuda" else kind.type
        yield Finding("ok", f"{kind.type}:{index}", str(detail))


def _check_sound() -> Iterator[Finding]:
    try:
        import soundfile
    except (ImportError, OSError) as error:
        yield Finding("problem", "libsndfile", f"cannot be loaded: {error}")
    else:
        yield Finding("ok", "libsndfile", soundfile.__libsndfile_version__)
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg:
        yield Finding("ok", "ffmpeg", ffmpeg)
    else:
        yield Finding("note", "ffmpeg", "not on PATH: reference audio in m4a, aac or wma cannot be read")


def _check_folders() -> Iterator[Finding]:
    folder = find_cache_folder()
    if folder is None:
        yield Finding("problem", "cache", f"this user has no home: name a folder with {VARIABLE}")
    else:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        free_gb = shutil.disk_usage(existing).free / 1e9
        is_writable = existing.is_dir() and os.access(existing, os.W_OK)
        access = "writable" if is_writable else f"not writable: name another folder with {VARIABLE}"
        yield Finding("ok" if is_writable else "problem", "cache", f"{folder}, {free_gb:.0f} GB free, {access}")
    offline = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name)]
    yield Finding("ok", "hub cache", constants.HF_HUB_CACHE)
    if offline:
        yield Finding("note", "hub", f"offline ({', '.join(offline)} is set): only cached checkpoints can be used")
