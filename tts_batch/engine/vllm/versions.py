"""Which releases of vLLM this engine was written for, and what of them is missing here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

TESTED: Mapping[str, str] = {"vllm": "0.30.0", "vllm-omni": "0.30.0"}
"""The releases that it is written for: CI checks their signatures and deploy schema."""

RAN_WITH = "torch 2.11.0+cu130, transformers 5.17.0, Python 3.12"
"""Beside what vLLM-Omni itself ran on an H200; its own pins are torch 2.13.0 and transformers >=5.13,<5.15."""

INSTALL = 'pip install "tts-batch[vllm]"'


def find_versions() -> dict[str, str]:
    """The installed releases of the packages of TESTED, without those that are missing."""
    return {name: version for name in TESTED if (version := _version(name)) is not None}


def find_problem(found: Mapping[str, str]) -> str | None:
    """Return a sentence on what keeps the engine from opening with these releases, or None."""
    missing = [name for name in TESTED if name not in found]
    if missing:
        return f"{' and '.join(missing)} not installed: {INSTALL}."
    other = [f"{name} {version}" for name, version in found.items() if version.partition("+")[0] != TESTED[name]]
    if other:
        return f"{', '.join(other)}: this engine is written for {describe_tested()} alone; {INSTALL}."
    return None


def describe_tested() -> str:
    """The tested releases, in words."""
    return ", ".join(f"{name} {version}" for name, version in TESTED.items())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
