"""The text side and the talker against the official package, from a row's words to its logits, in every prompt mode.

The parts have their own comparisons beside their tests (prompts, mel, x-vectors, codec); codes and waves of whole
generations are compared in tests/engine.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.golden.cases import CASES
from tests.golden.official import GOLDEN, LOGITS, Arrays, checkpoint_of, num_rows, official_arguments, read
from tests.model.attention import attend_causal
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.prompt import build_prompt, embed_prompt
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny

TEMPLATES = {"assistant": slice(3, -5), "ref": slice(3, -2), "instruct": slice(3, -2)}  # where the text's ids stand


@functools.cache
def load(kind: str, size: str) -> Qwen3TTS:
    return Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", kind, size))), "cpu", torch.float32)


def text_ids(arrays: Arrays, vocabulary: str, template: str) -> list[list[int]]:
    """The ids of each line of texts.txt, without its template's."""
    ids, ends = arrays[f"{vocabulary}_{template}_ids"], arrays[f"{vocabulary}_{template}_ends"]
    return [row[TEMPLATES[template]].tolist() for row in np.split(ids, ends[:-1])]


@pytest.mark.parametrize("template", TEMPLATES)
def test_two_hundred_texts_in_ten_languages_read_alike(template: str) -> None:
    arrays, tokenizer = read("tokenization_more"), load("base", "1b7").text_tokenizer
    texts = (GOLDEN / "texts.txt").read_text(encoding="utf-8").splitlines()
    assert arrays["texts"].tolist() == texts
    assert len(texts) == 200
    ours = [tokenizer.encode(text) for text in texts]
    assert ours == text_ids(arrays, "tiny", template)

    # In a vocabulary of the released size the package exchanged the split pattern; only there may we differ.
    theirs = text_ids(arrays, "bigvocab", template)
    differs = [a != b for a, b in zip(ours, theirs, strict=True)]
    assert differs == arrays["bigvocab_differs"].tolist()
    assert 0 < sum(differs) < 20


@pytest.mark.parametrize(("name", "row"), [(name, row) for name in CASES for row in range(num_rows(name))])
@torch.inference_mode()
def test_logits_of_the_first_tokens(name: str, row: int) -> None:
    """From our prompt, and then with the official codes: no code of ours decides what comes next."""
    model, arrays = load(*checkpoint_of(name)), read(name)
    codes = torch.from_numpy(arrays[f"codes_{row}"])
    expected = arrays["talker_logits"][: len(codes) + 1, row]
    logits = talker_logits(model, name, row, codes[: len(expected) - 1])
    np.testing.assert_allclose(logits, expected, atol=LOGITS, rtol=0)


def talker_logits(model: Qwen3TTS, name: str, row: int, codes: Tensor) -> Tensor:
    """[frames + 1, vocabulary] after the prompt of a golden row and these frames [frames, 16]."""
    arrays, arguments, talker = read(name), official_arguments(name, row), model.talker
    x_vector, ref_codes = (
        torch.from_numpy(arrays[key]) if key in arrays else None
        for key in (f"ref_spk_embedding_{row}", f"ref_code_{row}")
    )
    prompt = build_prompt(
        model.config,
        model.text_tokenizer,
        task=model.config.kind,
        **{key: arguments.get(key) for key in ("text", "language", "speaker", "instruct", "ref_text")},
        num_ref_frames=None if ref_codes is None else len(ref_codes),
        has_x_vector=x_vector is not None,
        x_vector_only=arguments.get("x_vector_only_mode", False),
        non_streaming=arguments.get("non_streaming_mode"),
    )
    pads = [model.config.tts_pad_token_id] * len(codes)
    trailing = talker.project_text(torch.tensor([*prompt.trailing_ids, *pads][: len(codes)], dtype=torch.int64))
    embeds = embed_prompt(talker, prompt, ref_codes, x_vector)
    x = torch.cat([embeds, talker.embed_frames(codes) + trailing])
    hidden = talker.stack(x, *talker.stack.rotary(torch.arange(len(x))), attend_causal)
    return talker.codec_head(hidden[len(embeds) - 1 :])
