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
