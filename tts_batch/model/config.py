"""A checkpoint's configuration: its JSON files, read strictly into frozen dataclasses. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

KINDS = ("base", "custom_voice", "voice_design")

# What the official package falls back to where generation_config.json leaves a field out.
GENERATION_DEFAULTS: dict[str, bool | int | float] = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "max_new_tokens": 2048,
}


class ConfigError(Exception):
    """A configuration file that cannot be used. The message names the file and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """Shape of a stack of decoder layers. `head_dim` is not hidden_size / num_attention_heads."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig(StackConfig):
    """The talker: text and codec tables, and the ids of the codec control tokens (rows of codec_embedding)."""

    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    num_code_groups: int
    max_position_embeddings: int
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePredictorConfig(StackConfig):
    """The code predictor: codes 1..15 of a frame, each from a vocabulary of `vocab_size`."""

    vocab_size: int
    num_code_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerEncoderConfig:
    """The x-vector network (Base only). Released files give the first two; the rest are the official defaults."""

    enc_dim: int
    sample_rate: int
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """config.json of a checkpoint.

    `languages` and `speakers` map lower-case names to rows of codec_embedding; `dialects` maps a speaker to the
    language name of their dialect, or to False.
    """

    kind: str  # one of KINDS
    size: str  # "0b6" | "1b7"
    im_start_token_id: int
    im_end_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    talker: TalkerConfig
    code_predictor: CodePredictorConfig
    speaker_encoder: SpeakerEncoderConfig | None
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, str | bool]

    @cached_property
    def supported_languages(self) -> tuple[str, ...]:
        """The names that a request may give, "auto" first. A dialect is chosen by its speaker, not by name."""
        return ("auto", *(name for name in self.languages if not name.endswith("_dialect")))

    @property
    def takes_instruct(self) -> bool:
        """Whether an instruct enters the prompt. The 0.6B CustomVoice was not trained with any."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """Take the parsed config.json. Raises ConfigError naming a key that is missing, ill-typed or unsupported."""
        root = _Section(values, where)
        root.expect(model_type="qwen3_tts", tokenizer_type="qwen3_tts_tokenizer_12hz")
        kind = root.get("tts_model_type", str)
        if kind not in KINDS:
            raise ConfigError(f"{where}: tts_model_type is {kind!r}; it must be one of {', '.join(KINDS)}")
        talker = root.section("talker_config")
        predictor = talker.section("code_predictor_config")
        for section in (talker, predictor):
            section.expect(hidden_act="silu", attention_bias=False, use_sliding_window=False)
            if section.values.get("rope_scaling"):
                section.section("rope_scaling").expect(type="default", rope_type="default")
        config = cls(
            kind=kind,
            size=root.get("tts_model_size", str),
            **{field.name: root.get(field.name, int) for field in fields(cls) if field.name.endswith("_token_id")},
            talker=talker.fill(TalkerConfig),
            code_predictor=predictor.fill(CodePredictorConfig),
            speaker_encoder=(
                root.section("speaker_encoder_config").fill(SpeakerEncoderConfig) if kind == "base" else None
            ),
            languages=talker.get("codec_language_id", dict),
            speakers=talker.get("spk_id", dict),
            dialects=talker.get("spk_is_dialect", dict),
        )
        if config.code_predictor.num_code_groups != config.talker.num_code_groups:
            raise ConfigError(f"{where}: num_code_groups differs between talker_config and code_predictor_config")
        if config.speaker_encoder and config.speaker_encoder.enc_dim != config.talker.hidden_size:
            raise ConfigError(f"{where}: speaker_encoder_config.enc_dim is not talker_config.hidden_size")
        for speaker, dialect in config.dialects.items():
            if dialect and dialect not in config.languages:
                raise ConfigError(f"{where}: spk_is_dialect.{speaker} is {dialect!r}, which codec_language_id lacks")
        return config


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecDecoderConfig(StackConfig):
    """decoder_config of the speech tokenizer. Stored codebooks are `codebook_dim // 2` wide."""

    codebook_size: int
    codebook_dim: int
    latent_dim: int
    sliding_window: int
    num_quantizers: int
    num_semantic_quantizers: int
    decoder_dim: int
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecEncoderConfig:
    """encoder_config of the speech tokenizer, with Mimi's names and Mimi's defaults for keys that a file omits."""

    num_filters: int = 64
    kernel_size: int = 7
    residual_kernel_size: int = 3
    last_kernel_size: int = 3
    compress: int = 2
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int = 64
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    codebook_size: int = 2048
    codebook_dim: int = 256
    num_quantizers: int = 32
    num_semantic_quantizers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """speech_tokenizer/config.json."""

    encoder_valid_num_quantizers: int
    decoder: CodecDecoderConfig
    encoder: CodecEncoderConfig

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "speech_tokenizer/config.json") -> CodecConfig:
        """Take the parsed config. Raises ConfigError naming a key that is missing, ill-typed or unsupported."""
        root = _Section(values, where)
        root.expect(model_type="qwen3_tts_tokenizer_12hz", input_sample_rate=24_000, output_sample_rate=24_000)
        root.expect(encode_downsample_rate=1_920, decode_upsample_rate=1_920)
        decoder = root.section("decoder_config")
        decoder.expect(hidden_act="silu", attention_bias=False)
        return cls(
            encoder_valid_num_quantizers=root.get("encoder_valid_num_quantizers", int),
            decoder=decoder.fill(CodecDecoderConfig),
            encoder=root.section("encoder_config").fill(CodecEncoderConfig),
        )


def generation_from_json(values: Mapping[str, Any], where: str = "generation_config.json") -> dict[str, Any]:
    """Return the ten generation fields: the file's value where it has one, else the official fallback."""
    root = _Section(values, where)
    return {
        name: root.get(name, type(default)) if name in values else default
        for name, default in GENERATION_DEFAULTS.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ConfigError when the file is missing or is not one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return values


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Section:
    """A JSON object, and where it stands: "config.json: talker_config"."""

    values: Mapping[str, Any]
    where: str

    def section(self, key: str) -> _Section:
        """Return the object values[key]."""
        return _Section(self.get(key, dict), f"{self.where}{'.' if ': ' in self.where else ': '}{key}")

    def fill(self, cls: type[T]) -> T:
        """Fill a dataclass from the keys of its own field names; a field without default is required."""
        kinds = get_type_hints(cls)
        given = {}
        for field in fields(cls):
            if field.name in self.values or field.default is MISSING:
                given[field.name] = self.get(field.name, get_origin(kinds[field.name]) or kinds[field.name])
        return cls(**given)

    def get(self, key: str, kind: type) -> Any:
        """Return values[key] as `kind`: JSON numbers may stand for floats, lists of integers for tuples."""
        if key not in self.values:
            raise ConfigError(f"{self.where}: {key} is missing")
        value = self.values[key]
        if kind is float and type(value) in (int, float):
            return float(value)
        if kind is tuple and isinstance(value, list) and all(type(item) is int for item in value):
            return tuple(value)
        if type(value) is not kind:
            raise ConfigError(f"{self.where}: {key} is {value!r}, not {kind.__name__}")
        return value

    def expect(self, **supported: Any) -> None:
        """Reject a key that is present with another value than the one this network implements."""
        for key, value in supported.items():
            if self.values.get(key, value) != value:
                raise ConfigError(f"{self.where}: {key} is {self.values[key]!r}; only {value!r} is supported")
