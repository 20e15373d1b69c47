"""Text to token ids: Qwen2 byte-level BPE from vocab.json and merges.txt, without control tokens. Loads no torch."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from pathlib import Path

import regex
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

# The split Qwen3 was trained with. Some releases of transformers replace it for local folders.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TextTokenizer:
    """A tokenizer without control tokens: a text that spells one is encoded as plain characters.

    Prompts are built from ids instead; config.json has the ids of the control tokens.
    """

    def __init__(self, folder: Path) -> None:
        """Read vocab.json and merges.txt of a checkpoint folder."""
        bpe = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        self._tokenizer = Tokenizer(bpe)
        self._tokenizer.normalizer = normalizers.NFC()
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._pieces = regex.compile(_SPLIT).findall
        self._count_piece = lru_cache(maxsize=1 << 16)(lambda piece: len(self.encode(piece)))
        self.count_cached = lru_cache(maxsize=1 << 12)(
            self.count
        )  # for texts that many rows share: transcripts, instructs

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, equal to those inside the official template."""
        return self._tokenizer.encode(text).ids

    def count(self, text: str) -> int:
        """Return len(encode(text)), several times faster over many texts: each word is encoded once and cached."""
        return sum(map(self._count_piece, self._pieces(unicodedata.normalize("NFC", text))))
