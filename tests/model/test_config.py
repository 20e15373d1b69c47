"""Reading the JSON files of a checkpoint."""

from __future__ import annotations

import copy
import dataclasses
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tts_batch.model.config import (
    GENERATION_DEFAULTS,
    CodecConfig,
    CodecDecoderConfig,
    CodePredictorConfig,
    ConfigError,
    ModelConfig,
    TalkerConfig,
    generation_from_json,
    read_json,
)

RELEASED = files("tts_batch.model") / "released"


def released(name: str) -> dict[str, Any]:
    return read_json(RELEASED / f"{name}.json")


def changed(name: str, path: str, value: Any = None, *, drop: bool = False) -> dict[str, Any]:
    """A released file with the value at a dotted path set or dropped."""
    values = copy.deepcopy(released(name))
    *sections, key = path.split(".")
    section = values
    for part in sections:
        section = section[part]
    if drop:
        del section[key]
    else:
        section[key] = value
    return values


def names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def test_the_small_model_widens_its_queries() -> None:
    talker = ModelConfig.from_json(released("base_0b6")).talker
    assert (talker.hidden_size, talker.num_attention_heads * talker.head_dim) == (1024, 2048)
    assert talker.rope_theta == 1e6


def test_a_speaker_encoder_comes_with_base_only() -> None:
    assert ModelConfig.from_json(released("custom_voice_1b7")).speaker_encoder is None
    encoder = ModelConfig.from_json(released("base_1b7")).speaker_encoder
    assert encoder is not None
    assert (encoder.enc_dim, encoder.enc_channels[-1]) == (2048, 1536)


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("base_1b7", False),
        ("base_0b6", False),
        ("custom_voice_0b6", False),
        ("custom_voice_1b7", True),
        ("voice_design_1b7", True),
    ],
)
def test_takes_instruct(name: str, takes: bool) -> None:
    assert ModelConfig.from_json(released(name)).takes_instruct is takes


def test_dialects_are_not_chosen_by_name() -> None:
    config = ModelConfig.from_json(released("custom_voice_1b7"))
    assert len(config.supported_languages) == 11
    assert config.supported_languages[0] == "auto"
    assert "sichuan_dialect" in config.languages
    assert "sichuan_dialect" not in config.supported_languages


REQUIRED = [
    *("model.tts_model_type", "model.tts_model_size", "model.im_start_token_id", "model.tts_eos_token_id"),
    *("model.talker_config", "model.talker_config.code_predictor_config", "model.speaker_encoder_config"),
    *(
        f"model.talker_config.{name}"
        for name in (*names(TalkerConfig), "codec_language_id", "spk_id", "spk_is_dialect")
    ),
    *(f"model.talker_config.code_predictor_config.{name}" for name in names(CodePredictorConfig)),
    *("model.speaker_encoder_config.enc_dim", "model.speaker_encoder_config.sample_rate"),
    *("codec.encoder_valid_num_quantizers", "codec.decoder_config", "codec.encoder_config"),
    *(f"codec.decoder_config.{name}" for name in names(CodecDecoderConfig)),
]


@pytest.mark.parametrize("path", REQUIRED)
def test_a_missing_key_is_named(path: str) -> None:
    which, _, path = path.partition(".")
    cls, name = (ModelConfig, "base_1b7") if which == "model" else (CodecConfig, "speech_tokenizer")
    with pytest.raises(ConfigError, match=rf"\b{path.rpartition('.')[2]} is missing"):
        cls.from_json(changed(name, path, drop=True))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model_type", "qwen3"),
        ("tokenizer_type", "qwen3_tts_tokenizer_25hz"),
        ("tts_model_type", "voice_cloning"),
        ("im_start_token_id", "151644"),
        ("talker_config.hidden_size", 2048.0),
        ("talker_config.hidden_act", "gelu"),
        ("talker_config.attention_bias", True),
        ("talker_config.use_sliding_window", True),
        ("talker_config.num_code_groups", 32),
        ("talker_config.rope_scaling", {"type": "yarn", "factor": 2.0}),
        ("talker_config.code_predictor_config.num_hidden_layers", True),
        ("talker_config.spk_is_dialect", {"eric": "wu_dialect"}),
        ("speaker_encoder_config.enc_dim", 1024),
        ("speaker_encoder_config.enc_channels", [512, 512.5]),
    ],
)
def test_an_unusable_value_is_named(path: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=path.rpartition(".")[2]):
        ModelConfig.from_json(changed("base_1b7", path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [("model_type", "mimi"), ("output_sample_rate", 48_000), ("decoder_config.upsample_rates", 480)],
)
def test_an_unusable_codec_value_is_named(path: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=path.rpartition(".")[2]):
        CodecConfig.from_json(changed("speech_tokenizer", path, value))


def test_generation_fields_fall_back_one_by_one() -> None:
    generation = generation_from_json({"top_k": 20, "temperature": 1, "transformers_version": "4.57.3"})
    assert generation == GENERATION_DEFAULTS | {"top_k": 20, "temperature": 1.0}
    with pytest.raises(ConfigError, match="do_sample"):
        generation_from_json({"do_sample": "yes"})


def test_a_file_that_is_not_a_json_object_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_json(path)
    for content in ("{", "[]"):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"config\.json"):
            read_json(path)
