"""Profiles: the four are whole, and a wrong key or value is named."""

from __future__ import annotations

from importlib.resources import files

import pytest

from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.profiles import PROFILES, load_profile, parse_profile

BASIC = (files("tts_batch") / "profiles" / "basic.yaml").read_text()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_whole(name: str, device: str) -> None:
    profile = load_profile(name, device)
    assert profile.max_num_seqs == (16 if device == "cpu" else 1_024 if name == "throughput" else 64)
    assert profile.experimental == (name == "b4")
    assert 0 < profile.kv_share < 1


def test_the_files_are_the_profiles() -> None:
    folder = files("tts_batch") / "profiles"
    assert {entry.name for entry in folder.iterdir()} == {f"{name}.yaml" for name in PROFILES}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASIC + "max_seqs: 3\n", "unknown key 'max_seqs'"),
        (BASIC + "  max_seqs: 3\n", "unknown key 'max_seqs'"),  # among a CPU's overrides
        (BASIC.replace("kv_share: 0.4", ""), "lacks kv_share"),
        (BASIC.replace("max_num_seqs: 64", "max_num_seqs: many"), "max_num_seqs cannot be 'many'; it is a int"),
        (BASIC.replace("max_num_seqs: 64", "max_num_seqs: true"), "max_num_seqs cannot be True"),
        (BASIC.replace("kv_share: 0.4", "kv_share: -1"), "kv_share cannot be -1"),
        (BASIC.replace("prefill_tokens: 2048", "prefill_tokens: 1.5"), r"prefill_tokens cannot be 1\.5"),
        ("- a", "not a mapping"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(EngineConfigError, match=message):
        parse_profile("mine", text, "cuda")
