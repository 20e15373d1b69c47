"""Profiles: the four are whole, and a wrong key or value is named."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files

import pytest

from tts_batch.engine.devices import resolve_platform
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.profiles import PROFILES, load_profile, parse_profile, resolve_profile
from tts_batch.engine.request import EngineConfig

BASIC = (files("tts_batch") / "profiles" / "basic.yaml").read_text()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_whole(name: str, device: str) -> None:
    profile = load_profile(name, device)
    assert profile.max_num_seqs == (16 if device == "cpu" else 2_048 if name == "throughput" else 64)
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


def resolved(**settings: object) -> tuple[str, object]:
    config = EngineConfig(model="", device="cpu", **settings)  # type: ignore[arg-type]
    return resolve_profile(config, resolve_platform(config))


def test_options_are_knobs_of_the_profile() -> None:
    name, profile = resolved(profile="b2", options={"frames_per_visit": "3", "kv_share": "0.5", "fast_codec": "false"})
    assert name == "b2"
    assert (profile.frames_per_visit, profile.kv_share, profile.fast_codec) == (3, 0.5, False)
    assert profile.prefill_tokens == load_profile("b2", "cpu").prefill_tokens


def test_every_optimisation_is_on_in_every_profile() -> None:
    for name in PROFILES:
        profile = load_profile(name, "cuda")
        switches = {name for name, value in asdict(profile).items() if isinstance(value, bool)} - {"experimental"}
        assert switches >= {"references_together", "fast_codec", "codec_skips_context", "codec_graphs", "codec_stream"}
        assert {getattr(profile, switch) for switch in switches} == {True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames_per_vist": "1"}, "options: unknown key 'frames_per_vist'; the keys are max_num_seqs, "),
        ({"fast_codec": "0"}, "options: fast_codec cannot be 0; it is a bool"),
        ({"prefill_tokens": "many"}, "options: prefill_tokens cannot be 'many'; it is a int"),
    ],
)
def test_an_option_that_is_none_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(EngineConfigError, match=message):
        resolved(options=options)
