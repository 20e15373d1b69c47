"""Evaluates the voice with a recogniser and a speaker encoder whose packages include weights. Runs on a CPU.

    python evaluate.py CHECKPOINTS all|hear|texts|speakers|clones|ends [--limit N]

CHECKPOINTS is what export.py wrote. It takes pocketsphinx and resemblyzer, and build/ as README.md prepares it.

    hear      forced choice among 50 unseen sentences: espeak-ng itself, through the codec, and the voice, with the
              whole text first and in the streaming layout
    texts     texts of one to five sentences: how many of their words are heard, in order?
    speakers  the named speakers: are clips of one speaker more alike than clips of two?
    clones    Base, with and without transcript: is a clone more like its own reference than like the others?
    ends      unseen sentences, single words and long texts: does the end come by itself, and when espeak-ng ends?
    all       all of these, one after another
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path

import numpy as np
import scipy.ndimage
from espeak import Espeak
from scipy.signal import resample_poly
from synthesise import BUILD
from voices import SPEAKERS, Voice, nameless_voices

from tts_batch.engine.generation import generate
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import EngineConfig, Reference, SamplingParams, SpeechRequest, SpeechResult
from tts_batch.model.checkpoint import resolve_checkpoint

NUM_CHOICES = 50
MAX_FRAMES = 1200
LAYOUTS = {True: "whole text first", False: "streaming"}  # of non_streaming
NAMES = list(SPEAKERS)
UNSEEN_VOICES = 10_000  # a seed that training does not use


class Studio:
    """Sources of audio: espeak-ng, the same through the codec, and the voice."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self._espeak = Espeak(BUILD / "espeak")

    def original(self, text: str, voice: Voice) -> np.ndarray:
        """Float32 samples from espeak-ng."""
        spoken = self._espeak.speak(text, voice.espeak, pitch=voice.pitch, rate=voice.rate)
        return spoken.samples.astype(np.float32) / 32768

    def through_codec(self, audio: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The same after encoding and decoding."""
        import torch

        from tts_batch.model.qwen3_tts import Qwen3TTS

        model = Qwen3TTS.load(resolve_checkpoint(str(self.checkpoints / "base")), "cpu", torch.float32)
        codec = model.speech_tokenizer
        return [codec.decode(codec.encode(clip)).numpy() for clip in audio]

    def speak(self, kind: str, requests: Sequence[dict[str, object]]) -> list[SpeechResult]:
        """The results of requests, in their order, with the checkpoint's own sampling settings."""
        path = self.checkpoints / kind
        sampling = SamplingParams(**resolve_checkpoint(str(path)).generation)
        engine = open_engine("native", EngineConfig(model=str(path), device="cpu", dtype="float32"))
        queue = (
            SpeechRequest(
                request_id=str(i),
                task=kind,
                seed=i,
                max_frames=MAX_FRAMES,
                sampling=sampling,
                **request,  # type: ignore[arg-type]
            )
            for i, request in enumerate(requests)
        )
        results = {int(result.request_id): result for result in generate(engine, queue)}
        engine.close()
        return [results[i] for i in range(len(requests))]

    def clone(self, pairs: Sequence[tuple[str, Voice]], x_vector_only: bool, non_streaming: bool) -> list[SpeechResult]:
        """Texts in voices known from one clip each."""
        requests = []
        for text, voice in pairs:
            words = "The old man walked slowly down to the river with his dog."
            audio = self.original(words, voice)
            reference = Reference(key=f"{voice}", load=lambda audio=audio: audio, text=words)
            known = {"reference": reference, "x_vector_only": x_vector_only}
            requests.append({"text": text, "non_streaming": non_streaming} | known)
        return self.speak("base", requests)


class Listener:
    """pocketsphinx with a grammar of given sentences: one of them, or any number in a row."""

    def __init__(self, sentences: Sequence[str], several: bool = False) -> None:
        from pocketsphinx import Decoder

        grammar = BUILD / "choices.jsgf"
        choices = " | ".join(" ".join(words_of(sentence)) for sentence in sentences)
        rules = f"<sentence> = {choices};\npublic <text> = <sentence>{'+' if several else ''};"
        grammar.write_text(f"#JSGF V1.0;\ngrammar choices;\n{rules}\n")
        self._decoder = Decoder(jsgf=str(grammar), loglevel="FATAL")

    def hears(self, sentence: str, audio: np.ndarray) -> bool:
        """Whether it recognises this sentence."""
        return self._words(audio) == words_of(sentence)

    def share(self, text: str, audio: np.ndarray) -> float:
        """The share of a text's words that it recognises, in order."""
        words = words_of(text)
        blocks = SequenceMatcher(None, words, self._words(audio), autojunk=False).get_matching_blocks()
        return sum(block.size for block in blocks) / len(words)

    def _words(self, audio: np.ndarray) -> list[str]:
        """Recognise audio, resampled to 16 kHz and padded with silence."""
        samples = resample_poly(audio * 32767, 2, 3).clip(-32768, 32767).astype(np.int16)
        self._decoder.start_utt()
        self._decoder.process_raw(np.pad(samples, (3200, 4800)).tobytes(), full_utt=True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        return [] if heard is None else heard.hypstr.split()


def words_of(sentence: str) -> list[str]:
    """Lower-case words without punctuation."""
    return re.sub(r"[^a-z' ]", " ", sentence.lower()).split()


def choices() -> list[str]:
    """Unseen sentences of 4 to 12 words that are all in the recogniser's dictionary."""
    from pocketsphinx import get_model_path

    with open(get_model_path("en-us/cmudict-en-us.dict"), encoding="utf-8") as file:
        known = {line.split()[0] for line in file}
    fit = [
        sentence
        for sentence in unseen()
        if 4 <= len(words_of(sentence)) <= 12
        and known.issuperset(words_of(sentence))
        and not re.search(r"[\d-]", sentence)
    ]
    return fit[:NUM_CHOICES]


def unseen() -> list[str]:
    """The sentences kept from training."""
    return (BUILD / "unseen.txt").read_text().split("\n")


def hear(studio: Studio, limit: int) -> Iterator[str]:
    """Two speakers read every sentence."""
    sentences = choices()
    listener = Listener(sentences)
    pairs = [(text, NAMES[(i + turn) % len(NAMES)]) for turn in (0, 4) for i, text in enumerate(sentences)][:limit]
    originals = [studio.original(text, SPEAKERS[name]) for text, name in pairs]
    own = 0

    def score(name: str, clips: Sequence[np.ndarray | None]) -> str:
        nonlocal own
        right = [clip is not None and listener.hears(text, clip) for (text, _), clip in zip(pairs, clips, strict=True)]
        by_speaker = {n: sum(ok for ok, (_, s) in zip(right, pairs, strict=True) if s == n) for n in NAMES}
        own = own or sum(right)  # espeak-ng's, which comes first
        return f"{name}: {sum(right)} of {len(right)}, {sum(right) / max(own, 1):.1%} of espeak-ng's; {by_speaker}"

    yield score("espeak-ng", originals)
    yield score("through the codec", studio.through_codec(originals))
    for non_streaming in (True, False):
        named = [{"text": text, "speaker": name, "non_streaming": non_streaming} for text, name in pairs]
        results = studio.speak("custom_voice", [request | {"language": "english"} for request in named])
        yield score(f"custom_voice, {LAYOUTS[non_streaming]}", [result.audio for result in results])
        for x_vector_only in (True, False):
            results = studio.clone([(t, SPEAKERS[name]) for t, name in pairs], x_vector_only, non_streaming)
            known = "x-vector only" if x_vector_only else "with transcript"
            yield score(f"base, {known}, {LAYOUTS[non_streaming]}", [result.audio for result in results])


def texts(studio: Studio, limit: int) -> Iterator[str]:
    """Two texts of each length by each named speaker."""
    sentences = choices()
    listener = Listener(sentences, several=True)
    rng = random.Random(0)
    for count in (1, 2, 3, 5):
        pairs = [(" ".join(rng.sample(sentences, count)), name) for name in NAMES for _ in range(2)]
        results = studio.speak("custom_voice", [{"text": text, "speaker": name} for text, name in pairs])
        own = np.mean([listener.share(text, studio.original(text, SPEAKERS[name])) for text, name in pairs])
        heard = np.mean([listener.share(text, clip_of(r)) for (text, _), r in zip(pairs, results, strict=True)])
        longest = max(len(text.split()) for text, _ in pairs)
        yield f"{count} sentences, at most {longest} words: {heard:.1%} of the words heard, espeak-ng's {own:.1%}"


def speakers(studio: Studio, limit: int) -> Iterator[str]:
    """Five sentences by each named speaker."""
    requests = [{"text": text, "speaker": name} for name in NAMES for text in unseen()[200:205]]
    results = studio.speak("custom_voice", requests)
    yield from _tell_apart([clip_of(r) for r in results], [str(request["speaker"]) for request in requests])


def clones(studio: Studio, limit: int) -> Iterator[str]:
    """Voices that training did not have."""
    voices = nameless_voices(12, seed=UNSEEN_VOICES)
    embed = speaker_embedder()
    targets = [embed(studio.original("A clip of the voice itself, saying something else.", v)) for v in voices]
    pairs = [(text, voice) for voice in voices for text in unseen()[300:303]]
    for x_vector_only, non_streaming in ((False, False), (True, False), (False, True), (True, True)):
        results = studio.clone(pairs, x_vector_only, non_streaming)
        alike = np.array([embed(clip_of(r)) for r in results]) @ np.array(targets).T
        own = alike[np.arange(len(pairs)), [voices.index(voice) for _, voice in pairs]]
        share = np.mean([own[i] > other for i in range(len(pairs)) for other in alike[i] if other != own[i]])
        name = f"{'x-vector only' if x_vector_only else 'with transcript'}, {LAYOUTS[non_streaming]}"
        yield f"{name}: likeness to the own reference {own.mean():.3f}, above that to another in {share:.1%}"


def ends(studio: Studio, limit: int) -> Iterator[str]:
    """Sentences of 3 to 25 words, by all speakers; then single words, and several sentences as one text."""
    rng = random.Random(0)
    sentences = [text for text in unseen() if 3 <= len(text.split()) <= 25]
    words = rng.sample(sorted({word for text in unseen() for word in words_of(text) if len(word) > 2}), 20)
    forty = [" ".join(" ".join(rng.sample(sentences, 40)).split()[:40]) + "." for _ in range(20)]
    five = [" ".join(rng.sample(sentences, 5)) for _ in range(20)]
    kinds = {"single words": words, "forty words": forty, "five sentences": five, "sentences": sentences[:limit]}
    for name, texts in kinds.items():
        pairs = [(text, NAMES[i % len(NAMES)]) for i, text in enumerate(texts)]
        results = studio.speak("custom_voice", [{"text": text, "speaker": speaker} for text, speaker in pairs])
        ratios = [
            len(result.audio) / len(studio.original(text, SPEAKERS[speaker]))
            for (text, speaker), result in zip(pairs, results, strict=True)
            if result.eos and result.audio is not None
        ]
        reasons = Counter(result.finish_reason for result in results if not result.eos)
        close = sum(0.7 <= ratio <= 1.3 for ratio in ratios)
        middle = statistics.median(ratios or [float("nan")])
        yield (
            f"{name}: {len(ratios)} of {len(texts)} ended ({len(ratios) / len(texts):.1%}); "
            f"{close} within 30 % of espeak-ng's duration; median ratio {middle:.2f}; "
            f"the others: {dict(reasons)}"
        )


def clip_of(result: SpeechResult) -> np.ndarray:
    """The audio of a result, or a second of silence if there is none."""
    return np.zeros(24_000, np.float32) if result.audio is None else result.audio


def speaker_embedder() -> Callable[[np.ndarray], np.ndarray]:
    """resemblyzer's voice encoder, whose package imports two modules that only its preprocessing needs."""
    sys.modules.setdefault("webrtcvad", types.ModuleType("webrtcvad"))
    sys.modules.setdefault("scipy.ndimage.morphology", scipy.ndimage)
    from resemblyzer import VoiceEncoder

    encoder = VoiceEncoder("cpu", verbose=False)
    return lambda audio: encoder.embed_utterance(resample_poly(audio, 2, 3).astype(np.float32))


def _tell_apart(clips: Sequence[np.ndarray], labels: Sequence[str]) -> Iterator[str]:
    embed = speaker_embedder()
    vectors = [embed(clip) for clip in clips]
    same, different = [], []
    for (a, x), (b, y) in combinations(zip(labels, vectors, strict=True), 2):
        (same if a == b else different).append(float(x @ y))
    above = np.mean(np.array(same)[:, None] > np.array(different))
    yield f"same speaker {np.mean(same):.3f}, different {np.mean(different):.3f}; same above different: {above:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("measure", choices=("all", *MEASURES))
    parser.add_argument("--limit", type=int, default=500, help="clips of each kind that hear and ends make at most")
    args = parser.parse_args()
    studio = Studio(args.checkpoints)
    for name in MEASURES if args.measure == "all" else (args.measure,):
        for line in MEASURES[name](studio, args.limit):
            print(f"{name}: {line}", flush=True)


MEASURES = {"hear": hear, "texts": texts, "speakers": speakers, "clones": clones, "ends": ends}


if __name__ == "__main__":
    main()
