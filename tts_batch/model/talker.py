"""The talker, for the first code of a frame, and the code predictor, for the other fifteen."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.model.config import CodePredictorConfig, TalkerConfig
from tts_batch.model.layers import DecoderStack


class CodePredictor(nn.Module):
    """One frame takes 15 passes over positions 0..15, with a fresh cache for every frame.

    Positions 0 and 1 hold `project` of the talker's hidden state and of its embedding of code 0; position g + 1
    holds `embed(g, code g)`. The hidden state at position g gives `logits(g, hidden)` of code g.
    """

    def __init__(self, config: CodePredictorConfig, talker_size: int) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderStack(config)
        self.model.codec_embedding = nn.ModuleList(  # of codebooks 1..15, as wide as the talker
            nn.Embedding(config.vocab_size, talker_size) for _ in range(config.num_code_groups - 1)
        )
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(config.num_code_groups - 1)
        )
        # 0.6B: the predictor is as wide as the talker and reads its vectors unchanged.
        same_size = talker_size == config.hidden_size
        self.small_to_mtp_projection = nn.Identity() if same_size else nn.Linear(talker_size, config.hidden_size)

    @property
    def stack(self) -> DecoderStack:
        """The layers and the final norm."""
        return self.model

    def project(self, x: Tensor) -> Tensor:
        """Map talker-wide vectors [..., H] to the predictor's width."""
        return self.small_to_mtp_projection(x)

    def embed(self, codebook: int, codes: Tensor) -> Tensor:
        """Return the projected input vectors [..., hidden_size] of codes [...] of a codebook in 1..14."""
        return self.project(self.model.codec_embedding[codebook - 1](codes))

    def logits(self, codebook: int, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab_size] over a codebook in 1..15 from hidden states [..., hidden_size]."""
        return self.lm_head[codebook - 1](hidden)


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
        self.model = DecoderStack(config)
        self.model.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)
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
