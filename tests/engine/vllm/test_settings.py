"""What an EngineConfig means to vLLM-Omni, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.request import EngineConfig
from tts_batch.engine.vllm.settings import resolve_settings, write_deploy_file


def config(**settings: Any) -> EngineConfig:
    return EngineConfig(**{"model": "", "device": "cuda", **settings})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cpu"}, "device 'cpu' is not one of auto, cuda"),
        ({"dtype": "float32"}, "dtype 'float32' is not one of auto, bfloat16"),
        ({"profile": "b8"}, "profile 'b8' is not one of basic, b2, b4, throughput"),
        ({"runner": "v3"}, "runner 'v3' is not one of v1, v2"),
        ({"placement": "spilt"}, "placement 'spilt' is not one of colocated, split"),
        ({"code2wav_mode": "whole"}, "code2wav_mode 'whole' is not one of utterance, chunked"),
        ({"on_chunk": print}, "returns whole clips only"),
        ({"max_num_seqs": 0}, "max_num_seqs cannot be 0"),
        ({"stall_timeout_s": 0.0}, "stall_timeout_s cannot be 0"),
        ({"options": {"async": "true"}}, "no option 'async'; there are async_chunk, gpu_memory_utilization"),
        ({"options": {"async_chunk": "perhaps"}}, "option async_chunk cannot be 'perhaps'; it is a bool"),
        ({"options": {"gpu_memory_utilization": "1.5"}}, "cannot be '1.5'; it is a float, above 0 and at most 1"),
        ({"options": {"subtalker_top_k": "2.5"}}, "subtalker_top_k cannot be '2.5'; it is a int"),
    ],
)
def test_what_it_cannot_do_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineConfigError, match=words):
        resolve_settings(config(**settings))


def test_the_deploy_file_says_all_that_was_asked_for(tmp_path: Path) -> None:
    options = {
        "gpu_memory_utilization": "0.2",
        "async_chunk": "true",
        "subtalker_dosample": "false",
        "subtalker_temperature": "1",
    }
    settings = resolve_settings(
        config(profile="b2", max_num_seqs=600, placement="split", eager=True, stall_timeout_s=7.0, options=options)
    )
    values = yaml.safe_load(write_deploy_file(settings, tmp_path).read_text())
    talker, code2wav = values["stages"]
    assert (values["async_chunk"], settings.whole_utterance) == (True, True)
    assert (talker["devices"], code2wav["devices"]) == ("0", "1")
    assert (talker["max_num_seqs"], talker["max_num_batched_tokens"]) == (600, 600)
    assert {stage["gpu_memory_utilization"] for stage in values["stages"]} == {0.2}
    assert {stage["enforce_eager"] for stage in values["stages"]} == {True}
    assert talker["subtalker_sampling_params"] == {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
    waits = values["connectors"]["connector_of_shared_memory"]["extra"]
    assert waits["connector_get_max_wait"] == int(settings.longest_deadline_s) == 2_055


def test_deadlines_grow_with_the_budget() -> None:
    settings = resolve_settings(config(stall_timeout_s=10.0, max_frames=300))
    assert [settings.deadline_s(frames) for frames in (0, 100)] == [10.0, 60.0]
    assert settings.longest_deadline_s == 160.0
