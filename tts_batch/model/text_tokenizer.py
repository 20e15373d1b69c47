"""Text to token ids: Qwen2 byte-level BPE from vocab.json and merges.txt, without control tokens. Loads no torch."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from pathlib import Path

import regex
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

# The split Qwen3 was trained with. Some releases of transformers put another in its place for local folders.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TextTokenizer:
    """The tokenizer knows no control tokens, so a text that spells one is read as the characters it is made of.

    Templates are built from ids instead: the control tokens' ids stand in config.json.
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
        self.count_again = lru_cache(maxsize=1 << 12)(self.count)  # of what many rows share: transcripts, instructs

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text: what the official template gives for it, between its header and its end."""
        return self._tokenizer.encode(text).ids

    def count(self, text: str) -> int:
        """Return len(encode(text)), several times faster over many texts: a word is encoded once and remembered."""
        return sum(map(self._count_piece, self._pieces(unicodedata.normalize("NFC", text))))
