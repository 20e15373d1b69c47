"""Which codes of a clip are beyond doubt: a near tie may fall the other way wherever sums are rounded otherwise."""

from __future__ import annotations

import numpy as np
import torch

from tts_batch.model.speech_tokenizer import SpeechTokenizer

NEAR_TIE = 1e-3  # of the distances to the nearest and second nearest vector


@torch.no_grad()
def sure(tokenizer: SpeechTokenizer, clip: np.ndarray) -> np.ndarray:
    """Bool [frames, 16]: neither this code nor one before it in its residual chain is a near tie."""
    encoder = tokenizer.encoder
    latent = encoder.latent(torch.from_numpy(clip)[None, None])
    semantic = encoder.quantizer.semantic_residual_vector_quantizer
    acoustic = encoder.quantizer.acoustic_residual_vector_quantizer
    columns = []
    for chain, levels in ((semantic, 1), (acoustic, tokenizer.num_codebooks - 1)):
        residual, is_sure = chain.input_proj(latent)[0].T, True
        for layer in chain.layers[:levels]:
            vectors = layer["codebook"].vectors
            nearest, second = torch.cdist(residual, vectors).topk(2, largest=False)[0].T
            is_sure = is_sure & (second - nearest > NEAR_TIE)
            columns.append(is_sure)
            residual = residual - vectors[torch.cdist(residual, vectors).argmin(-1)]
    return torch.stack(columns, dim=1).numpy()
