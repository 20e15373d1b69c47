"""The code predictor: from a talker state and first code to the other fifteen codes of a frame."""

from __future__ import annotations

from torch import Tensor, nn

from tts_batch.model.config import CodePredictorConfig
from tts_batch.model.layers import DecoderStack


class CodePredictorModel(DecoderStack):
    """The stack and the embedding tables of codebooks 1..15, which are as wide as the talker."""

    def __init__(self, config: CodePredictorConfig, talker_size: int) -> None:
        super().__init__(config)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size, talker_size) for _ in range(config.num_code_groups - 1)
        )


class CodePredictor(nn.Module):
    """One frame takes 15 passes over positions 0..15, with a fresh cache for every frame.

    Positions 0 and 1 hold `project` of the talker's hidden state and of its embedding of code 0; position g + 1
    holds `embed(g, code g)`. The hidden state at position g gives `logits(g, hidden)` of code g.
    """

    def __init__(self, config: CodePredictorConfig, talker_size: int) -> None:
        super().__init__()
        self.config = config
        self.model = CodePredictorModel(config, talker_size)
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
