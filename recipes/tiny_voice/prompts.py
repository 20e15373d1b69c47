"""Training examples for the talker: the same prompts as at synthesis, followed by the frames to say.

One talker learns all three kinds of checkpoint. Everything here is ids; the vectors are looked up on the device.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from shapes import model_config
from synthesise import voice_table
from torch import Tensor
from torch.utils.data import IterableDataset
from voices import SPEAKERS

from tts_batch.model.prompt import NOTHING, REF_FRAME, X_VECTOR, Prompt, build_prompt
from tts_batch.model.text_tokenizer import TextTokenizer

MIX = (  # share, task, non_streaming, x_vector_only
    (0.34, "custom_voice", True, False),
    (0.12, "custom_voice", False, False),
    (0.16, "base", False, True),
    (0.04, "base", True, True),
    (0.22, "base", False, False),
    (0.04, "base", True, False),
    (0.08, "voice_design", True, False),
)
LANGUAGES = ("auto",) * 9 + ("english",) * 9 + ("german", "chinese")  # the voice speaks English whatever the tag
MAX_FRAMES = 250  # of a clip, and of the clip it is cloned from
POOL = 24  # batches sorted by length together
NO_TARGET, END = -1, -2
NAMES = list(SPEAKERS)


@dataclass
class Clips:
    """What the examples need to know of a corpus, without its audio and codes."""

    texts: list[str]
    instructs: list[str]
    voices: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


@dataclass
class Example:
    """Ids of one sequence, position by position, and the clip that its x-vector is taken from (or -1)."""

    text: list[int]  # a text id or NOTHING
    codec: list[int]  # an id of the talker's codec table, NOTHING, X_VECTOR or REF_FRAME for any whole frame
    frame: list[int]  # which frame of the corpus stands here, or -1
    target: list[int]  # which frame of the corpus comes next, END or NO_TARGET
    reference: int


@dataclass
class Batch:
    """Examples padded on the right, int64 [B, L], and the references [B]."""

    text: np.ndarray | Tensor  # arrays when made, tensors once on the device
    codec: np.ndarray | Tensor
    frame: np.ndarray | Tensor
    target: np.ndarray | Tensor
    reference: np.ndarray | Tensor

    def to(self, device: str) -> Batch:
        """The same as tensors on a device."""
        return Batch(**{f.name: torch.as_tensor(getattr(self, f.name)).to(device) for f in fields(self)})


class Examples(IterableDataset[Batch]):
    """Endless batches of about `positions` positions each."""

    def __init__(self, clips: Clips, positions: int, seed: int) -> None:
        self.clips = clips
        self.positions = positions
        self.seed = seed

    def __iter__(self) -> Iterator[Batch]:
        info = torch.utils.data.get_worker_info()
        rng = random.Random(self.seed * 1000 + (info.id if info else 0))
        maker = ExampleMaker(self.clips, rng)
        while True:
            pool: list[Example] = []
            total = 0
            while total < POOL * self.positions:
                pool.append(maker.make())
                total += len(pool[-1].text)
            pool.sort(key=lambda example: len(example.text))
            batches = []
            while pool:
                count = max(1, self.positions // len(pool[-1].text))
                batches.append(pool[-count:])
                pool = pool[:-count]
            rng.shuffle(batches)
            yield from map(collate, batches)


class ExampleMaker:
    """Draws clips and lays out their prompts."""

    def __init__(self, clips: Clips, rng: random.Random) -> None:
        self.clips = clips
        self.rng = rng
        self.configs = {kind: model_config(kind) for kind in ("base", "custom_voice", "voice_design")}
        self.tokenizer = TextTokenizer(Path(__file__).parent / "tokenizer")
        self.voices = voice_table()
        usable = [i for i, length in enumerate(clips.lengths) if length <= MAX_FRAMES]
        self.named = [i for i in usable if clips.voices[i] < len(NAMES)]
        self.nameless = [i for i in usable if clips.voices[i] >= len(NAMES)]
        plain = [i for i in usable if not clips.instructs[i]]
        self.of_voice = {voice: [] for voice in set(clips.voices.tolist())}
        for i in plain:
            self.of_voice[int(clips.voices[i])].append(i)

    def make(self) -> Example:
        """Draw one example."""
        rng, clips = self.rng, self.clips
        _, task, non_streaming, x_vector_only = rng.choices(MIX, [mix[0] for mix in MIX])[0]
        clip = rng.choice(self.named if task == "custom_voice" else self.nameless)
        voice = int(clips.voices[clip])
        reference = rng.choice([i for i in self.of_voice[voice] if i != clip] or [clip]) if task == "base" else -1
        icl = task == "base" and not x_vector_only
        instruct = clips.instructs[clip] or None
        prompt = build_prompt(
            self.configs[task],
            self.tokenizer,
            text=clips.texts[clip],
            task=task,
            language=rng.choice(LANGUAGES),
            speaker=NAMES[voice] if task == "custom_voice" else None,
            instruct=self.voices[voice].description if task == "voice_design" else instruct,
            ref_text=clips.texts[reference] if icl else None,
            num_ref_frames=int(clips.lengths[reference]) if icl else None,
            has_x_vector=task == "base",
            x_vector_only=x_vector_only,
            non_streaming=non_streaming,
        )
        return self._lay_out(prompt, clip, reference)

    def _lay_out(self, prompt: Prompt, clip: int, reference: int) -> Example:
        clips, length = self.clips, int(self.clips.lengths[clip])
        tts_pad = self.configs["base"].tts_pad_token_id
        spoken = list(range(clips.starts[clip], clips.starts[clip] + length))
        trailing = [*prompt.trailing_ids[:length], *[tts_pad] * (length - len(prompt.trailing_ids))]
        heard = iter(range(clips.starts[reference], clips.starts[reference] + clips.lengths[reference]))
        return Example(
            text=[*prompt.text_ids, *trailing],
            codec=[*prompt.codec_ids, *[REF_FRAME] * length],
            frame=[*(next(heard) if codec == REF_FRAME else -1 for codec in prompt.codec_ids), *spoken],
            target=[*[NO_TARGET] * (prompt.num_tokens - 1), *spoken, END],
            reference=reference if X_VECTOR in prompt.codec_ids else -1,
        )


def collate(examples: list[Example]) -> Batch:
    """Pad on the right: attention is causal, so padding changes nothing."""
    longest = max(len(example.text) for example in examples)

    def rows(name: str, fill: int) -> np.ndarray:
        table = np.full((len(examples), longest), fill, np.int64)
        for row, example in zip(table, examples, strict=True):
            ids = getattr(example, name)
            row[: len(ids)] = ids
        return table

    return Batch(
        text=rows("text", NOTHING),
        codec=rows("codec", NOTHING),
        frame=rows("frame", -1),
        target=rows("target", NO_TARGET),
        reference=np.array([example.reference for example in examples]),
    )
