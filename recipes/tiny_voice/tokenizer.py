"""The voice's text tokenizer: byte-level BPE of 640 entries, trained on its own texts.

    python tokenizer.py

Writes vocab.json and merges.txt to tokenizer/. The sizes are those of the random tiny checkpoints, so that control
tokens keep their ids.
"""

from __future__ import annotations

import json
from pathlib import Path

from texts import read_texts
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

NUM_ENTRIES = 640
# How a Qwen tokenizer cuts a text before it looks for entries.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HERE = Path(__file__).parent
# The prompt template needs each of these as one token, as in the released vocabulary: so often that they become one.
TEMPLATE_WORDS = ["assistant", "user", "system"] * 50_000


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_ENTRIES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*read_texts(HERE / "build" / "texts.txt.gz"), *TEMPLATE_WORDS], trainer)
    bpe = json.loads(tokenizer.to_str())["model"]
    (HERE / "tokenizer").mkdir(exist_ok=True)
    (HERE / "tokenizer" / "vocab.json").write_text(json.dumps(bpe["vocab"], ensure_ascii=False), encoding="utf-8")
    merges = "".join(f"{first} {second}\n" for first, second in bpe["merges"])
    (HERE / "tokenizer" / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")


if __name__ == "__main__":
    main()
