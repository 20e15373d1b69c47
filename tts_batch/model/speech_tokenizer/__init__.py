"""The speech tokenizer (12.5 Hz codec): 24 kHz speech to frames of 16 codes and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tts_batch.model.config import CodecConfig
from tts_batch.model.speech_tokenizer.decoder import CodecDecoder
from tts_batch.model.speech_tokenizer.encoder import CodecEncoder
from tts_batch.model.speech_tokenizer.pieces import cut_pieces


class SpeechTokenizer(nn.Module):
    """Encoder and decoder of the codec. Results are on the module's device; audio is float32 in any module dtype."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.num_codebooks = config.encoder_valid_num_quantizers
        self.encoder = CodecEncoder(config.encoder)
        self.decoder = CodecDecoder(config.decoder)

    def encode(self, audio: Tensor | np.ndarray) -> Tensor:
        """Codes int64 [ceil(samples / 1920), 16] of one clip: float32 [samples], mono, 24 kHz, not empty."""
        samples = torch.as_tensor(audio, device=self.encoder.downsample.conv.weight.device)
        return self.encode_batch(samples[None], torch.tensor([len(samples)], device=samples.device))[0]

    @torch.no_grad()
    def encode_batch(self, audio: Tensor, lengths: Tensor) -> Tensor:
        """Codes int64 [B, frames, 16] of padded clips float32 [B, samples] of `lengths` int64 [B] valid samples.

        A clip of n samples has ceil(n / 1920) frames, equal to those of `encode` up to near ties; the rest is padding.
        """
        waveforms = audio[:, None].to(self.encoder.downsample.conv.weight)
        return self.encoder(waveforms, self.num_codebooks, lengths).transpose(1, 2)

    @torch.no_grad()
    def decode(self, codes: Tensor | np.ndarray) -> Tensor:
        """Audio float32 [T * 1920] of one sequence of codes [T, 16], with the official seams."""
        frames = torch.as_tensor(codes, device=self.decoder.pre_conv.conv.weight.device).long()
        parts = [torch.zeros(0, device=frames.device)]
        for piece in cut_pieces(len(frames)):
            audio = self.decoder(frames[piece.frames].T[None]).float()[0]
            parts.append(audio[piece.context * self.decoder.samples_per_frame :])
        return torch.cat(parts)
