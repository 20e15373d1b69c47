"""Qwen3TTS: all networks of a checkpoint, loaded once per worker."""

from __future__ import annotations

import torch
from torch import nn

from tts_batch.model.checkpoint import Checkpoint
from tts_batch.model.config import CodecConfig, ModelConfig
from tts_batch.model.speaker_encoder import SpeakerEncoder
from tts_batch.model.speech_tokenizer import SpeechTokenizer
from tts_batch.model.talker import Talker
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.weights import fill_random, load_weights


class Qwen3TTS:
    """Text tokenizer, talker with its code predictor, speaker encoder (Base only) and speech tokenizer.

    `network` has the tensors of model.safetensors, under the same names; `speech_tokenizer` has a file of its own.
    """

    text_tokenizer: TextTokenizer

    def __init__(self, config: ModelConfig, codec: CodecConfig) -> None:
        """Build the network on the meta device: names and shapes, without values or a text tokenizer."""
        self.config = config
        self.codec = codec
        with torch.device("meta"):
            self.talker = Talker(config.talker, config.code_predictor)
            self.speaker_encoder = SpeakerEncoder(config.speaker_encoder) if config.speaker_encoder else None
            self.speech_tokenizer = SpeechTokenizer(codec)
        self.network = nn.ModuleDict({"talker": self.talker})
        if self.speaker_encoder:
            self.network["speaker_encoder"] = self.speaker_encoder
        for module in (self.network, self.speech_tokenizer):
            module.requires_grad_(False).eval()

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        device: torch.device | str,
        dtype: torch.dtype,
        codec_dtype: torch.dtype = torch.float32,
    ) -> Qwen3TTS:
        """Load a checkpoint. Raises WeightsError when a file does not fit the configuration."""
        folder = checkpoint.path
        model = cls(checkpoint.config, checkpoint.codec)
        model.text_tokenizer = TextTokenizer(folder)
        load_weights(model.network, folder / "model.safetensors", device, dtype)
        load_weights(model.speech_tokenizer, folder / "speech_tokenizer" / "model.safetensors", device, codec_dtype)
        return model

    @classmethod
    def random(
        cls,
        config: ModelConfig,
        codec: CodecConfig,
        text_tokenizer: TextTokenizer,
        device: torch.device | str,
        dtype: torch.dtype,
        codec_dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> Qwen3TTS:
        """Return a model of the given shapes with random weights, for timing without a checkpoint."""
        model = cls(config, codec)
        model.text_tokenizer = text_tokenizer
        fill_random(model.network, device, dtype, seed)
        fill_random(model.speech_tokenizer, device, codec_dtype, seed)
        return model

    @property
    def device(self) -> torch.device:
        """The device of the talker."""
        return self.talker.device
