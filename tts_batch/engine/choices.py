"""What an EngineConfig may name: each choice stated once, as a type and as a tuple. Importing it loads no torch."""

from __future__ import annotations

from typing import Literal, get_args

DeviceName = Literal["auto", "cpu", "cuda", "xpu", "npu", "musa"]
DtypeName = Literal["auto", "float32", "bfloat16"]
RunnerName = Literal["v1", "v2"]
ProfileName = Literal["basic", "b2", "b4", "throughput"]
PlacementName = Literal["colocated", "split"]
Code2WavModeName = Literal["utterance", "chunked"]

DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)
DTYPES: tuple[DtypeName, ...] = get_args(DtypeName)
RUNNERS: tuple[RunnerName, ...] = get_args(RunnerName)
PROFILES: tuple[ProfileName, ...] = get_args(ProfileName)
PLACEMENTS: tuple[PlacementName, ...] = get_args(PlacementName)
CODE2WAV_MODES: tuple[Code2WavModeName, ...] = get_args(Code2WavModeName)

ROW_BUCKETS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512),
    *(640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048),
)
"""How many rows a frame of runner v2 may have: rows are padded up to one of these."""

KV_PAGE_TOKENS = 64
"""Tokens of a row whose keys and values lie together."""

DEFAULT_MAX_FRAMES = 8_192
"""The longest budget of a request, where a job names none."""
