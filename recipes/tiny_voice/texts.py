"""The training texts: sentences of WordNet, words, numbers and short phrases, one a line.

    python texts.py --root FOLDER --out build/texts.txt.gz

FOLDER holds the unpacked Debian packages wordnet-base and wamerican (both under permissive licences).
Held-out sentences, which no training sees, go to build/unseen.txt.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
from collections.abc import Iterator
from pathlib import Path

MAX_CHARACTERS = 160
NUM_UNSEEN = 1_000
_WORD = re.compile(r"[A-Za-z]{2,}")
_SPOKEN = re.compile(r"[A-Za-z][A-Za-z0-9 ,.;:'?!-]*")

_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"]
_NAMES = ["Anna", "Peter", "Maria", "John", "Sarah", "David", "Emma", "Robert", "Laura", "James", "Alice", "Henry"]
_PHRASES = (
    """
Hello.  |  Hello world.  |  Good morning.  |  Good evening, everyone.  |  Good night.  |  Yes.  |  No.  |  Maybe.
Thank you.  |  Thank you very much.  |  You are welcome.  |  How are you today?  |  I am fine, thank you.
What is your name?  |  My name is {name}.  |  Nice to meet you, {name}.  |  Happy birthday, {name}!
Please wait a moment.  |  One moment, please.  |  See you tomorrow.  |  See you on {day}.
Call me at {hour} on {day}.
The meeting is on {day}, {month} {small}.  |  It is {hour} o'clock.  |  The train leaves at {hour}.
Turn left at the next corner.  |  Turn right after {small} miles.  |  Where is the station?  |  Room {number}.
The answer is {number}.  |  I have {small} dogs.  |  She paid {number} dollars.  |  {small} plus {small} is {small}.
Chapter {small}.  |  Page {small} of {number}.  |  There were {number} people in the room.
In {year}, everything changed.  |  He was born in {year}.  |  This is a test.  |  This is sentence number {small}.
Testing, one, two, three.  |  Welcome to the show.  |  I do not know.  |  Are you sure?  |  Of course.  |  Let us go.
What time is it?  |  It is raining again.  |  The sun is shining.
""".strip()
    .replace("\n", "  |  ")
    .split("  |  ")
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "build" / "texts.txt.gz")
    args = parser.parse_args()
    rng = random.Random(0)

    sentences = sorted(set(_wordnet(args.root / "usr/share/wordnet")))
    rng.shuffle(sentences)
    unseen, seen = sentences[:NUM_UNSEEN], sentences[NUM_UNSEEN:]
    words = [word for word in _lines(args.root / "usr/share/dict/american-english") if _WORD.fullmatch(word)]
    seen += [_short(rng, words) for _ in range(len(seen) // 6)]
    seen += [_phrase(rng) for _ in range(len(seen) // 12)]
    rng.shuffle(seen)

    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(gzip.compress("\n".join(seen).encode(), mtime=0))
    (args.out.parent / "unseen.txt").write_text("\n".join(unseen))
    print(f"{len(seen)} texts, {sum(map(len, seen)) / len(seen):.0f} characters on average, {len(unseen)} held out")


def read_texts(path: Path) -> list[str]:
    """The lines of a .txt or .txt.gz file."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode().split("\n")


def _wordnet(folder: Path) -> Iterator[str]:
    """Definitions and example sentences: 'a tangible entity; "it was full of objects"'."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in _lines(folder / f"data.{part}"):
            if " | " not in line:
                continue
            for piece in re.findall(r'"[^"]*"|[^;"]+', line.split(" | ", 1)[1]):
                text = re.sub(r"\([^)]*\)", "", piece.strip(' "')).replace("`", "'").replace("--", ", ")
                text = re.sub(r"\s+", " ", text).replace(" ,", ",").strip(" ,;:-'")
                if 4 <= len(text) <= MAX_CHARACTERS and _SPOKEN.fullmatch(text):
                    yield _as_sentence(text)


def _as_sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def _short(rng: random.Random, words: list[str]) -> str:
    """One to six unrelated words, so that every word of the list occurs."""
    text = " ".join(rng.choice(words) for _ in range(rng.choice((1, 1, 2, 3, 4, 6))))
    return rng.choice((text, _as_sentence(text)))


def _phrase(rng: random.Random) -> str:
    return rng.choice(_PHRASES).format(
        name=rng.choice(_NAMES),
        day=rng.choice(_DAYS),
        month=rng.choice(_MONTHS),
        hour=rng.randint(1, 12),
        small=rng.randint(0, 99),
        number=rng.choice((rng.randint(0, 99), rng.randint(100, 999), rng.randint(1000, 99_999))),
        year=rng.randint(1500, 2100),
    )


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


if __name__ == "__main__":
    main()
