"""Text ids: the official package's for ordinary text, and never a control token."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import Qwen2Tokenizer

from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.tiny import build_tiny

GOLDEN = Path(__file__).parents[1] / "golden"
TEMPLATES = {"assistant": slice(3, -5), "ref": slice(3, -2), "instruct": slice(3, -2)}  # the text's part of each

# What transformers 4.57.3 splits with instead, for local folders of a vocabulary above 100,000.
MISTRAL_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = [
    *("Hello", " WiFi", "iPhone's", " 3.14", "don't", "\n", " \n\n", "\t", "  ", "!", "...", "//", "😀", "e\u0301"),
    *("你好，", "こんにちは", "안녕하세요", "Привет", "¿qué tal?", "über", "ça", "città", "coração", "ﬁ", "\u3000"),
]
CONTROL_TOKENS = ["<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(build_tiny("tiny-random", "base"))


@pytest.fixture(scope="module")
def by_transformers() -> Tokenizer:
    """An independent reading of the same files."""
    return Qwen2Tokenizer.from_pretrained(build_tiny("tiny-random", "base")).backend_tokenizer


def official(vocabulary: str) -> dict[str, list[list[int]]]:
    """The official ids of each text under the three templates, cut to the text's part."""
    texts = {}
    with np.load(GOLDEN / "tokenization.npz") as golden:
        for index, text in enumerate(golden["texts"].tolist()):
            texts[text] = [golden[f"{vocabulary}_{name}_{index}"][0, part].tolist() for name, part in TEMPLATES.items()]
    with np.load(GOLDEN / "tokenization_more.npz") as golden:
        columns = []
        for name, part in TEMPLATES.items():
            ids, ends = golden[f"{vocabulary}_{name}_ids"], golden[f"{vocabulary}_{name}_ends"]
            columns.append([row[part].tolist() for row in np.split(ids, ends[:-1])])
        texts |= zip(golden["texts"].tolist(), (list(row) for row in zip(*columns, strict=True)), strict=True)
    return texts


def test_the_official_ids(tokenizer: TextTokenizer) -> None:
    golden = official("tiny")
    assert len(golden) >= 200
    for text, theirs in golden.items():
        same = [tokenizer.encode(text)] * 3 == theirs
        assert same is ("<|" not in text), text


def test_the_qwen_split_always(tokenizer: TextTokenizer, by_transformers: Tokenizer) -> None:
    """With a vocabulary of the real size the official package splits otherwise; nothing else may differ."""
    swapped = Tokenizer.from_str(by_transformers.to_str())
    swapped.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(MISTRAL_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    golden = {text: theirs for text, theirs in official("bigvocab").items() if "<|" not in text}
    for text, theirs in golden.items():
        assert theirs == [swapped.encode(text).ids] * 3, text
    differing = [text for text, theirs in golden.items() if theirs[0] != tokenizer.encode(text)]
    assert "WiFi iPhone OpenAI x//\ny ...\n/ end" in differing
    assert "Hello world, this is a small test." not in differing


@given(st.one_of(st.text(), st.lists(st.sampled_from([*WORDS, *CONTROL_TOKENS])).map("".join)))
def test_counting_is_the_number_of_ids(tokenizer: TextTokenizer, text: str) -> None:
    assert tokenizer.count(text) == len(tokenizer.encode(text))


@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS)).map("".join)))
def test_ordinary_text_reads_as_in_the_template(
    tokenizer: TextTokenizer, by_transformers: Tokenizer, text: str
) -> None:
    ids = by_transformers.encode(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n").ids
    leading_space = text[: len(text) - len(text.lstrip())]
    if not {"\n", "\r"} & set(leading_space):  # that would melt into the template's own newline
        assert tokenizer.encode(text) == ids[3:-5]


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_a_spelled_control_token_is_text(tokenizer: TextTokenizer, by_transformers: Tokenizer, token: str) -> None:
    control = by_transformers.token_to_id(token)
    assert by_transformers.encode(f"a{token}b").ids.count(control) == 1
    ids = tokenizer.encode(f"a{token}b")
    assert control not in ids
    assert by_transformers.decode(ids, skip_special_tokens=False) == f"a{token}b"


def test_a_leading_newline_keeps_to_the_text(tmp_path: Path) -> None:
    """The released vocabulary has a token for two newlines; the tiny one gets it here."""
    source = build_tiny("tiny-random", "base")
    vocabulary = json.loads((source / "vocab.json").read_text(encoding="utf-8"))
    newline, two_newlines = "\u010a", "\u010a\u010a"
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary | {two_newlines: len(vocabulary)}))
    merges = (source / "merges.txt").read_text(encoding="utf-8")
    (tmp_path / "merges.txt").write_text(f"{merges}{newline} {newline}\n", encoding="utf-8")
    tokenizer = TextTokenizer(tmp_path)
    assert tokenizer.encode("assistant\n\nHi")[1] == len(vocabulary)
    assert tokenizer.encode("\nHi") == [vocabulary[newline], *tokenizer.encode("Hi")]
