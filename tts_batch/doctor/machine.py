"""What `doctor` looks at on a machine: packages, devices, sound libraries, folders. Each check yields findings."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`. A "problem" stops a run; a "note" is worth knowing."""

    level: Literal["ok", "note", "problem"]
    subject: str
    detail: str


def check_machine() -> Iterator[Finding]:
    """Look at everything that needs no model."""
    yield Finding("ok", "python", sys.version.split()[0])
    yield from _check_packages()
    yield from _check_devices()
    yield from _check_sound()
    yield from _check_folders()


def _check_packages() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    for line in metadata.requires("tts-batch") or []:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"wanted: {requirement.specifier}" if requirement.specifier else "any version will do"
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Finding("problem", requirement.name, f"not installed, {wanted}")
            continue
        fits = requirement.specifier.contains(found, prereleases=True)
        yield Finding("ok" if fits else "problem", requirement.name, f"{found}, {wanted}")


def _check_devices() -> Iterator[Finding]:
    import torch

    yield Finding("ok", "cpu", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        yield Finding("note", "accelerator", "none that torch can use: runs go to the CPU")
        return
    for index in range(torch.accelerator.device_count()):
        detail = torch.cuda.get_device_properties(index) if kind.type == "cuda" else kind.type
        yield Finding("ok", f"{kind.type}:{index}", str(detail))


def _check_sound() -> Iterator[Finding]:
    import soundfile

    yield Finding("ok", "libsndfile", soundfile.__libsndfile_version__)
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg:
        yield Finding("ok", "ffmpeg", ffmpeg)
    else:
        yield Finding("note", "ffmpeg", "not on PATH: reference audio in m4a, aac or wma cannot be read")


def _check_folders() -> Iterator[Finding]:
    from huggingface_hub import constants

    from tts_batch.model.tiny import cache_folder

    folder = cache_folder()
    free_gb = shutil.disk_usage(_nearest(folder)).free / 1e9
    writable = os.access(_nearest(folder), os.W_OK)
    yield Finding("ok" if writable else "problem", "cache", f"{folder}, {free_gb:.0f} GB free, {writable=}")
    offline = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name)]
    yield Finding("ok", "hub cache", constants.HF_HUB_CACHE)
    if offline:
        yield Finding("note", "hub", f"offline ({', '.join(offline)} is set): only cached checkpoints can be used")


def _nearest(folder: os.PathLike[str]) -> str:
    path = os.path.abspath(folder)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
