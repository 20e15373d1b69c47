"""The talker: text and codec vectors to hidden states and logits of the first codebook."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.model.code_predictor import CodePredictor
from tts_batch.model.config import CodePredictorConfig, TalkerConfig
from tts_batch.model.layers import DecoderStack


class TalkerModel(DecoderStack):
    """The stack and the two embedding tables of the talker."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config)
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)


class TextProjection(nn.Module):
    """Text vectors to the talker's width, through a SiLU."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2 = nn.Linear(config.text_hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class Talker(nn.Module):
    """A position's input is a text part plus a codec part; both are H wide.

    While decoding, the input after frame k is `embed_frames(codes of frame k)` plus the vector of the
    prompt's trailing text id k (`Prompt.trailing_ids`), or of tts_pad once those are used up.
    """

    def __init__(self, config: TalkerConfig, code_predictor: CodePredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerModel(config)
        self.text_projection = TextProjection(config)
        self.codec_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.code_predictor = CodePredictor(code_predictor, config.hidden_size)

    @property
    def stack(self) -> DecoderStack:
        """The layers and the final norm."""
        return self.model

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.codec_head.weight.device

    def project_text(self, ids: Tensor) -> Tensor:
        """Return the vectors [..., H] of text token ids [...]."""
        return self.text_projection(self.model.text_embedding(ids))

    def embed_code0(self, ids: Tensor) -> Tensor:
        """Return the vectors [..., H] of first-codebook ids [...], acoustic codes and control tokens alike."""
        return self.model.codec_embedding(ids)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Return the vectors [..., H] of whole frames [..., 16]: one float32 sum over codebooks, rounded once."""
        tables = [self.model.codec_embedding, *self.code_predictor.model.codec_embedding]
        vectors = torch.stack([table(codes[..., g]) for g, table in enumerate(tables)], dim=-2)
        return vectors.sum(dim=-2, dtype=torch.float32).to(vectors.dtype)
