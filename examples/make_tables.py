"""Makes the tables in this folder: hello.parquet, languages.parquet (not for `tiny`), clone.parquet (cloning)."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

HELLO = [
    ("hello-en", "Hello! This sentence was read from a table.", "english", "ryan", None, "greeting"),
    ("hello-en-slow", "And this one asks for a pace of its own.", "english", "aiden", "Speak slowly.", "greeting"),
    ("hello-word", "Welcome.", "english", "vivian", None, "greeting"),
    ("hello-train", "Good morning! The train leaves at a quarter past eight.", "english", "serena", None, "travel"),
    ("hello-number", "There are nineteen chairs in the second room.", "english", "dylan", None, "counting"),
    ("hello-auto", "No language is given here, so the model decides.", None, "ryan", None, "greeting"),
]
LANGUAGES = [
    ("hello-zh", "你好，很高兴认识你。", "chinese", "vivian", None, "greeting"),
    ("hello-ja", "こんにちは。今日はいい天気ですね。", "japanese", "ono_anna", None, "weather"),
    ("hello-de", "Guten Morgen! Der Zug fährt um 8:15 Uhr ab.", "german", "serena", None, "travel"),
]
CLONE_TEXTS = ["The voice of this clip comes from a recording.", "Here it is again, in another sentence."]
REF_TEXT = "Ah, oh, ee, oo."
SAMPLE_RATE_HZ = 16_000


def voice_like(seconds: float = 3.2) -> np.ndarray:
    """Return a buzz with the formants of four vowels, enough of a voice to try cloning with. Float [samples]."""
    t = np.arange(int(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    phase = 2 * np.pi * np.cumsum(120 + 15 * np.sin(2 * np.pi * 1.5 * t)) / SAMPLE_RATE_HZ
    vowels = np.array([[730, 1090], [570, 840], [270, 2290], [300, 870]])[(t / seconds * 4).astype(int)]
    wave = np.zeros_like(t)
    for harmonic in range(1, 30):
        gain = np.exp(-(((harmonic * 120 - vowels) / 180) ** 2)).sum(axis=1) + 0.02
        wave += gain / harmonic**0.5 * np.sin(harmonic * phase)
    envelope = np.abs(np.sin(np.pi * t / seconds * 4)) ** 0.5  # one syllable a vowel
    return np.asarray(0.5 * wave * envelope / np.abs(wave).max())


def main(folder: Path = Path(__file__).parent) -> None:
    names = ("id", "text", "language", "speaker", "instruct", "topic")
    for table, rows in (("hello", HELLO), ("languages", LANGUAGES)):
        records = [dict(zip(names, row, strict=True)) for row in rows]
        pq.write_table(pa.Table.from_pylist(records), folder / f"{table}.parquet")

    wav = io.BytesIO()
    soundfile.write(wav, voice_like(), SAMPLE_RATE_HZ, format="WAV")
    ref_audio = {"bytes": wav.getvalue(), "path": "vowels.wav"}
    voice = {"language": "english", "ref_audio": ref_audio, "ref_text": REF_TEXT}
    clones = [{"id": f"clone-{n}", "text": text} | voice for n, text in enumerate(CLONE_TEXTS)]
    pq.write_table(pa.Table.from_pylist(clones), folder / "clone.parquet")


if __name__ == "__main__":
    main()
