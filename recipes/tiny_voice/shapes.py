"""The shape of the tiny voice: the JSON files of its checkpoints.

They are those of the random tiny checkpoints, wider. Of the 2048 codes of each codebook only the first NUM_CODES are
used, so the tables of codes hold rows that mean nothing; the repository stores them without those. The codebooks from
NUM_LEVELS on say nothing: their code is always 0.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from tts_batch.model.config import CodecConfig, ModelConfig

NUM_CODES = 256
NUM_LEVELS = 8

_TALKER = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "text_hidden_size": 128,
}
_MROPE_SECTION = [12, 10, 10]  # sums to half of head_dim
_PREDICTOR = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "layer_types": ["full_attention"] * 3,
}
_SPEAKER_ENCODER = {
    "enc_dim": 256,
    "enc_channels": [64, 64, 64, 64, 192],
    "enc_attention_channels": 32,
    "enc_se_channels": 32,
}
_CODEC_DECODER = {
    "codebook_dim": 128,
    "vector_quantization_hidden_dimension": 128,
    "latent_dim": 192,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "decoder_dim": 256,
}
_CODEC_ENCODER = {
    "codebook_dim": 64,
    "vector_quantization_hidden_dimension": 64,
    "num_filters": 16,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "upsample_groups": 128,
}


def model_json(kind: str) -> dict[str, Any]:
    """config.json of a base, custom_voice or voice_design checkpoint."""
    values = _read("config.json")
    values["tts_model_type"] = kind
    talker = values["talker_config"]
    talker |= _TALKER
    talker["rope_scaling"]["mrope_section"] = _MROPE_SECTION
    talker["code_predictor_config"] |= _PREDICTOR
    values["speaker_encoder_config"] |= _SPEAKER_ENCODER
    if kind != "base":
        del values["speaker_encoder_config"]
    if kind != "custom_voice":
        talker |= {"spk_id": {}, "spk_is_dialect": {}}
    return values


def codec_json() -> dict[str, Any]:
    """speech_tokenizer/config.json."""
    values = _read("speech_tokenizer/config.json")
    values["decoder_config"] |= _CODEC_DECODER
    values["encoder_config"] |= _CODEC_ENCODER
    return values


def model_config(kind: str) -> ModelConfig:
    """The same, read."""
    return ModelConfig.from_json(model_json(kind))


def codec_config() -> CodecConfig:
    """The same, read."""
    return CodecConfig.from_json(codec_json())


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("tts_batch.model.tiny") / "data" / name).read_text(encoding="utf-8"))
    return content
