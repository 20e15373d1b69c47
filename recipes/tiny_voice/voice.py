"""The talker, code predictor and speaker encoder in training: from rows of ids to the official losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from prompts import END, REFERENCES
from shapes import NUM_CODES, NUM_LEVELS, model_config
from torch import Tensor, nn

from tts_batch.model.prompt import REF_FRAME
from tts_batch.model.speaker_encoder import SpeakerEncoder
from tts_batch.model.talker import Talker

PREDICTOR_FRAMES = 8192  # of a step; a frame costs the predictor NUM_LEVELS positions
CORRUPTED = 0.04  # of the codes that the talker hears of itself, so that it can go on after a slip


class Voice(nn.Module):
    """The trained part of model.safetensors.

    The code predictor's tables have one row for all the codes that are not used, and none for the codebooks that say
    nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        config = model_config("base")
        self.num_unused = config.code_predictor.vocab_size - NUM_CODES
        predictor = replace(config.code_predictor, vocab_size=NUM_CODES + 1, num_code_groups=NUM_LEVELS)
        self.talker = Talker(config.talker, predictor)
        self.speaker_encoder = SpeakerEncoder(config.speaker_encoder)
        self.run_talker: Callable[..., Tensor] = run_stack
        self.run_predictor: Callable[..., Tensor] = run_stack
        for parameter in self.talker.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    @torch.no_grad()
    def forget_codes(self) -> None:
        """Reinitialise the tensors of single codes at their present scale; texts and voices keep theirs."""
        predictor = self.talker.code_predictor
        tables = [self.talker.model.codec_embedding, self.talker.codec_head]
        for table in (*tables, *predictor.model.codec_embedding, *predictor.lm_head):
            rows = table.weight[:NUM_CODES]
            rows.normal_(std=float(rows.std()))

    def forward(self, rows: dict[str, Tensor], codes: Tensor, wrong: Tensor, mel: Tensor) -> dict[str, Tensor]:
        """Losses of the first codes and of the others [NUM_LEVELS - 1], and the share of first codes guessed right.

        `rows` are int64, by the names of prompts.Rows; `codes` those of the corpus [frames, 16]; `wrong` random frames
        [B, L] to mishear; `mel` [B * REFERENCES, T, 128] is of the references.
        """
        talker = self.talker
        lengths = mel.new_full((len(mel),), mel.shape[1], dtype=torch.int64)
        x_vectors = self.speaker_encoder(mel, lengths).unflatten(0, (-1, REFERENCES))
        x = self._embed(rows, codes, wrong, x_vectors)
        before = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        mask = before & (rows["segment"][:, :, None] == rows["segment"][:, None])
        hidden = self.run_talker(talker.stack, x, mask[:, None]).flatten(0, 1)

        target = rows["target"].flatten()
        spoken, talks = target >= 0, (target >= 0) | (target == END)
        frames = codes[target.clamp(min=0)].long()
        code0 = torch.where(spoken, frames[:, 0], talker.config.codec_eos_token_id)
        logits = talker.codec_head(hidden).float()
        count = talks.sum().clamp(min=1)
        losses = F.cross_entropy(logits, code0, reduction="none")
        first = (losses * talks).sum() / count
        right = ((logits.argmax(-1) == code0) & talks).sum() / count
        end = (losses * (target == END)).sum() / (target == END).sum().clamp(min=1)

        lots = torch.rand(len(target), device=x.device) + spoken
        some = lots.topk(min(PREDICTOR_FRAMES, len(target)), sorted=False).indices
        others = self._others(hidden[some], frames[some]) * spoken[some][:, None]
        others = others.sum(0) / spoken[some].sum().clamp(min=1)
        return {"first": first, "others": others, "right": right, "end": end.detach()}

    def _embed(self, rows: dict[str, Tensor], codes: Tensor, wrong: Tensor, x_vectors: Tensor) -> Tensor:
        """The talker's inputs [B, L, H].

        All tables are one, and a position's input is a row of zeros and ones times that table: products of matrices
        are quicker to differentiate than look-ups.
        """
        talker = self.talker
        tables = [talker.text_projection(talker.model.text_embedding.weight), talker.model.codec_embedding.weight]
        tables += [table.weight for table in talker.code_predictor.model.codec_embedding]
        offsets = [0]
        for table in tables:
            offsets.append(offsets[-1] + len(table))
        nowhere = offsets[-1]
        size = nowhere + 64 - nowhere % 64
        table = torch.cat([*(t.float() for t in tables), tables[1].new_zeros(size - nowhere, tables[1].shape[1])])

        text, codec, is_frame = rows["text"], rows["codec"], rows["codec"] == REF_FRAME
        heard = codes[rows["frame"].clamp(min=0)].long()
        if self.training:
            mishears = torch.rand(heard.shape, device=heard.device) < CORRUPTED
            heard = torch.where(mishears, codes[wrong].long(), heard)
        ids = [torch.where(text >= 0, text, nowhere)]
        ids.append(offsets[1] + torch.where(is_frame, heard[..., 0], codec))
        ids[1] = torch.where(is_frame | (codec >= 0), ids[1], nowhere)
        ids += [torch.where(is_frame, offsets[g + 1] + heard[..., g], nowhere) for g in range(1, NUM_LEVELS)]
        ones = torch.zeros(text.numel(), size, dtype=torch.bfloat16, device=text.device)
        ones.scatter_(1, torch.stack(ids, -1).flatten(0, 1), 1.0)
        x = (ones @ table.bfloat16()).unflatten(0, text.shape)
        here = rows["place"][:, None] == torch.arange(text.shape[1], device=text.device)[:, None]
        return x.float() + here.to(x_vectors) @ x_vectors

    def _others(self, state: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy of codes 1 .. NUM_LEVELS - 1 [N, ...], each given the state [N, H] and the codes before it."""
        predictor = self.talker.code_predictor
        tables = [self.talker.model.codec_embedding, *predictor.model.codec_embedding[: NUM_LEVELS - 2]]
        row = torch.arange(NUM_CODES, device=codes.device)
        inputs = [
            (codes[:, g, None] == row).to(table.weight) @ table.weight[:NUM_CODES] for g, table in enumerate(tables)
        ]
        x = predictor.project(torch.stack([state.float(), *(i.float() for i in inputs)], 1)).float()
        hidden = self.run_predictor(predictor.stack, x, None)
        logits = torch.stack([predictor.logits(g, hidden[:, g]) for g in range(1, NUM_LEVELS)], 1).float()
        row = torch.arange(NUM_CODES + 1, device=codes.device)
        logits = logits + (row == NUM_CODES) * math.log(self.num_unused)  # one row stands for all unused codes
        return F.cross_entropy(logits.transpose(1, 2), codes[:, 1:NUM_LEVELS], reduction="none")


def run_stack(stack: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Run a DecoderStack over whole sequences [B, L, H]; each position sees those before it, or what `mask` says."""
    rows, length, _ = x.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        q, k, v = (t.unflatten(0, (rows, length)).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return mixed.transpose(1, 2).flatten(0, 1)

    cos, sin = stack.rotary(torch.arange(length, device=x.device).repeat(rows))
    return stack(x.flatten(0, 1), cos, sin, attend).unflatten(0, (rows, length))
