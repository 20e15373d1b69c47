"""A checkpoint's configuration: its JSON files, read strictly into frozen dataclasses. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    supported_languages: tuple[str, ...] = field(init=False)
    """The names that a request may give, "auto" first. A dialect is chosen by its speaker, not by name."""

    def __post_init__(self) -> None:
        spoken = (name for name in self.languages if not name.endswith("_dialect"))
        object.__setattr__(self, "supported_languages", ("auto", *spoken))  # once: it is read for every row of a table

    @property
    def takes_instruct(self) -> bool:
        """Whether an instruct enters the prompt. The 0.6B CustomVoice was not trained with any."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """Take the parsed config.json. Raises ConfigError naming a key that is missing, ill-typed or unsupported."""
        _expect(values, where, model_type="qwen3_tts", tokenizer_type="qwen3_tts_tokenizer_12hz")
        kind = _get(values, "tts_model_type", str, where)
        if kind not in KINDS:
            raise ConfigError(f"{where}: tts_model_type is {kind!r}; it must be one of {', '.join(KINDS)}")
        talker = _get(values, "talker_config", dict, where)
        predictor = _get(talker, "code_predictor_config", dict, f"{where}: talker_config")
        for section, name in ((talker, "talker_config"), (predictor, "talker_config.code_predictor_config")):
            _expect(section, f"{where}: {name}", hidden_act="silu", attention_bias=False, use_sliding_window=False)
            scaling = section.get("rope_scaling") or {}
            _expect(scaling, f"{where}: {name}.rope_scaling", type="default", rope_type="default")
        ids = [f.name for f in fields(cls) if f.name.endswith("_token_id")]
        config = cls(
            kind=kind,
            size=_get(values, "tts_model_size", str, where),
            **{name: _get(values, name, int, where) for name in ids},
            talker=_section(TalkerConfig, talker, f"{where}: talker_config"),
            code_predictor=_section(CodePredictorConfig, predictor, f"{where}: talker_config.code_predictor_config"),
            speaker_encoder=(
                _section(
                    SpeakerEncoderConfig,
                    _get(values, "speaker_encoder_config", dict, where),
                    f"{where}: speaker_encoder_config",
                )
                if kind == "base"
                else None
            ),
            languages=_get(talker, "codec_language_id", dict, f"{where}: talker_config"),
            speakers=_get(talker, "spk_id", dict, f"{where}: talker_config"),
            dialects=_get(talker, "spk_is_dialect", dict, f"{where}: talker_config"),
        )
        config._check(where)
        return config

    def _check(self, where: str) -> None:
        if self.code_predictor.num_code_groups != self.talker.num_code_groups:
            raise ConfigError(f"{where}: num_code_groups differs between talker_config and code_predictor_config")
        if self.speaker_encoder and self.speaker_encoder.enc_dim != self.talker.hidden_size:
            raise ConfigError(f"{where}: speaker_encoder_config.enc_dim is not talker_config.hidden_size")
        for speaker, dialect in self.dialects.items():
            if dialect and dialect not in self.languages:
                raise ConfigError(f"{where}: spk_is_dialect.{speaker} is {dialect!r}, which codec_language_id lacks")


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
class CodecConfig:
    """speech_tokenizer/config.json. `encoder` is the keyword set of transformers' MimiConfig."""

    encoder_valid_num_quantizers: int
    decoder: CodecDecoderConfig
    encoder: Mapping[str, Any]

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "speech_tokenizer/config.json") -> CodecConfig:
        """Take the parsed config. Raises ConfigError naming a key that is missing, ill-typed or unsupported."""
        rates = {"input_sample_rate": 24_000, "output_sample_rate": 24_000}
        strides = {"encode_downsample_rate": 1_920, "decode_upsample_rate": 1_920}
        _expect(values, where, model_type="qwen3_tts_tokenizer_12hz", **rates, **strides)
        decoder = _get(values, "decoder_config", dict, where)
        _expect(decoder, f"{where}: decoder_config", hidden_act="silu", attention_bias=False)
        return cls(
            encoder_valid_num_quantizers=_get(values, "encoder_valid_num_quantizers", int, where),
            decoder=_section(CodecDecoderConfig, decoder, f"{where}: decoder_config"),
            encoder=_get(values, "encoder_config", dict, where),
        )


def generation_from_json(values: Mapping[str, Any], where: str = "generation_config.json") -> dict[str, Any]:
    """Return the ten generation fields: the file's value where it has one, else the official fallback."""
    return {
        name: _get(values, name, type(default), where) if name in values else default
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


def _section(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Fill a dataclass from the keys of its own field names; a field without default is required."""
    kinds = get_type_hints(cls)
    given = {}
    for key in fields(cls):
        if key.name in values or key.default is MISSING:
            given[key.name] = _get(values, key.name, get_origin(kinds[key.name]) or kinds[key.name], where)
    return cls(**given)


def _get(values: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """Return values[key] as `kind`: JSON numbers may stand for floats, lists of integers for tuples."""
    if key not in values:
        raise ConfigError(f"{where}: {key} is missing")
    value = values[key]
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind is tuple and isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    if type(value) is not kind:
        raise ConfigError(f"{where}: {key} is {value!r}, not {kind.__name__}")
    return value


def _expect(values: Mapping[str, Any], where: str, **supported: Any) -> None:
    """Reject a key that is present with another value than the one this network implements."""
    for key, value in supported.items():
        if values.get(key, value) != value:
            raise ConfigError(f"{where}: {key} is {values[key]!r}; only {value!r} is supported")
