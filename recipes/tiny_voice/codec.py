"""The speech tokenizer in training: encoder, codebooks, decoder, and the heads of the auxiliary losses."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from quantizer import FoundQuantizer
from shapes import NUM_CODES, NUM_LEVELS, codec_config
from spectra import OUTLINE_WIDTH
from synthesise import NUM_PHONEMES
from torch import Tensor, nn
from weights import load_pieces, save_pieces

from tts_batch.model.speech_tokenizer import SpeechTokenizer

STEPS_PER_FRAME = 4  # of the decoder's upsampled latent: 50 a second, like the phonemes
OUTLINES_PER_STEP = 2


class Codec(nn.Module):
    """The speech tokenizer with the codebooks in use, and heads that only training needs."""

    def __init__(self) -> None:
        super().__init__()
        config = codec_config()
        self.network = SpeechTokenizer(config)
        width = config.decoder.codebook_dim // 2
        self.semantic = FoundQuantizer(1, NUM_CODES, width)
        self.acoustic = FoundQuantizer(NUM_LEVELS - 1, NUM_CODES, width)
        self.phonemes = nn.Linear(width, STEPS_PER_FRAME * NUM_PHONEMES)
        self.sounds = nn.Linear(config.decoder.latent_dim, NUM_PHONEMES)
        self.outline = nn.Linear(config.decoder.latent_dim, OUTLINES_PER_STEP * OUTLINE_WIDTH)

    def encode_latents(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of the semantic and acoustic codebooks, each [B, T, width], for audio [B, samples]."""
        latent = self.network.encoder.latent(audio[:, None])
        parts = self.network.encoder.quantizer
        first = parts.semantic_residual_vector_quantizer.input_proj(latent)
        rest = parts.acoustic_residual_vector_quantizer.input_proj(latent)
        return first.transpose(1, 2), rest.transpose(1, 2)

    def upsample(self, first: Tensor, rest: Tensor) -> Tensor:
        """The decoder's first half: quantized vectors [B, T, width] to [B, latent_dim, 4 T]."""
        decoder = self.network.decoder
        x = decoder.quantizer.rvq_first.output_proj(first.transpose(1, 2))
        x = x + decoder.quantizer.rvq_rest.output_proj(rest.transpose(1, 2))
        return decoder.upsample(decoder.pre_transformer(decoder.pre_conv(x).transpose(1, 2)).transpose(1, 2))

    def save(self, folder: Path) -> None:
        """Write the state, weights in float16, without the network's own codebooks, which `settle` fills."""
        weights = {k: v.half() for k, v in self.named_parameters()}
        books = {k: v for k, v in self.state_dict().items() if k.startswith(("semantic.", "acoustic."))}
        save_pieces(weights | books, folder, "codec")

    def load(self, folder: Path) -> None:
        """Read a state that `save` wrote, or the parts of another that have the same shape."""
        own = self.state_dict()
        saved = load_pieces(folder, "codec")
        self.load_state_dict({k: v for k, v in saved.items() if own[k].shape == v.shape}, strict=False)

    @torch.no_grad()
    def settle(self) -> SpeechTokenizer:
        """Write the codebooks into the network, as its files hold them.

        Entries beyond NUM_CODES are never the nearest. In codebooks beyond NUM_LEVELS the first entry always is, and
        all entries decode to zero.
        """
        encoder, decoder = self.network.encoder.quantizer, self.network.decoder.quantizer
        for found, source, target in (
            (self.semantic, encoder.semantic_residual_vector_quantizer, decoder.rvq_first),
            (self.acoustic, encoder.acoustic_residual_vector_quantizer, decoder.rvq_rest),
        ):
            for level, layer in enumerate(target.vq["layers"]):
                encoding, decoding = source.layers[level]["codebook"], layer["_codebook"]
                vectors = found.vectors[level] if level < len(found.vectors) else found.vectors.new_zeros(1, 1)
                for codebook, unused in ((encoding, 1e4), (decoding, 0.0)):
                    sums = getattr(codebook, codebook.sum_name)
                    codebook.cluster_usage.fill_(1)
                    sums.fill_(unused)
                    sums[: len(vectors)] = vectors
                    codebook.to(sums.device)  # forgets the divided vectors
        return self.network


def wait_for(folder: Path, seconds: float = 400) -> None:
    """Wait until a concurrent program has written its codec. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not (folder / "codec.done").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no codec in {folder}")
        time.sleep(0.2)
