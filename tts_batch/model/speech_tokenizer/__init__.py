"""The speech tokenizer (12.5 Hz codec): 24 kHz speech to frames of 16 codes and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tts_batch.model.config import CodecConfig
from tts_batch.model.speech_tokenizer.decoder import CodecDecoder
from tts_batch.model.speech_tokenizer.encoder import CodecEncoder, EncoderConfig
from tts_batch.model.speech_tokenizer.pieces import Piece, cut_pieces


class SpeechTokenizer(nn.Module):
    """Encoder and decoder of the codec. Results are on the module's device; audio is float32 in any module dtype."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.num_codebooks = config.encoder_valid_num_quantizers
        self.encoder = CodecEncoder(EncoderConfig.from_mimi(config.encoder))
        self.decoder = CodecDecoder(config.decoder)

    @torch.no_grad()
    def encode(self, audio: Tensor | np.ndarray) -> Tensor:
        """Codes int64 [ceil(samples / 1920), 16] of one clip: float32 [samples], mono, 24 kHz, not empty."""
        weight = self.encoder.downsample.conv.weight
        waveform = torch.as_tensor(audio, dtype=weight.dtype, device=weight.device)
        return self.encoder(waveform[None, None], self.num_codebooks)[0].T

    @torch.no_grad()
    def encode_batch(self, audio: Tensor, lengths: Tensor) -> Tensor:
        """Codes int64 [B, frames, 16] of padded clips float32 [B, samples] of `lengths` int64 [B] valid samples.

        A clip of n samples has ceil(n / 1920) frames, equal to those of `encode` up to near ties; the rest is padding.
        """
        waveforms = audio[:, None].to(self.encoder.downsample.conv.weight)
        return self.encoder(waveforms, self.num_codebooks, lengths).transpose(1, 2)

    def decode(self, codes: Tensor | np.ndarray) -> Tensor:
        """Audio float32 [T * 1920] of one sequence of codes [T, 16], with the official seams."""
        return torch.cat([self._no_audio(), *self.decode_chunks(codes)])

    def decode_chunks(self, codes: Tensor | np.ndarray) -> Iterator[Tensor]:
        """The same audio piece by piece, each float32 [frames * 1920]."""
        for piece in cut_pieces(len(codes)):
            yield from self.decode_pieces([(codes, piece)])

    def decode_batch(self, batch: Sequence[Tensor | np.ndarray], max_frames: int = 650) -> list[Tensor]:
        """Audio float32 [T * 1920] of each sequence of codes [T, 16].

        Equal to `decode` of each up to float32 rounding. Pieces of like length are decoded together, up to
        `max_frames` frames at once, padding included; the released codec needs some 4 MB for each in float32.
        """
        pieces = [(row, piece) for row, codes in enumerate(batch) for piece in cut_pieces(len(codes))]
        parts: list[dict[int, Tensor]] = [{} for _ in batch]
        for group in _groups(sorted(pieces, key=lambda item: -item[1].num_frames), max_frames):
            decoded = self.decode_pieces([(batch[row], piece) for row, piece in group])
            for (row, piece), audio in zip(group, decoded, strict=True):
                parts[row][piece.start] = audio
        return [torch.cat([self._no_audio(), *(part[start] for start in sorted(part))]) for part in parts]

    @torch.no_grad()
    def decode_pieces(self, pieces: Sequence[tuple[Tensor | np.ndarray, Piece]]) -> list[Tensor]:
        """Audio float32 [new frames * 1920] of pieces of sequences [T, 16], in one pass of the decoder."""
        device = self.decoder.pre_conv.conv.weight.device
        rows = [torch.as_tensor(codes[piece.frames], device=device).long() for codes, piece in pieces]
        audio = self.decoder(pad_sequence(rows, batch_first=True).transpose(1, 2)).float()
        samples = self.decoder.samples_per_frame
        return [
            row[piece.context * samples : piece.num_frames * samples]
            for row, (_, piece) in zip(audio, pieces, strict=True)
        ]

    def _no_audio(self) -> Tensor:
        return torch.zeros(0, device=self.decoder.pre_conv.conv.weight.device)


def _groups(pieces: list[tuple[int, Piece]], max_frames: int) -> Iterator[list[tuple[int, Piece]]]:
    """Consecutive pieces, longest first, as many together as fit `max_frames` when padded, at least one."""
    while pieces:
        rows = max(1, max_frames // pieces[0][1].num_frames)
        yield pieces[:rows]
        pieces = pieces[rows:]
