"""Training examples for the talker: the same prompts as at synthesis, followed by the frames to say.

One talker learns all three kinds of checkpoint. Everything here is ids; the vectors are looked up on the device.
Examples lie end to end in rows of one length, so that every training step has the same shape.

In the streaming layout a frame of speech is due with the first token of the text, which is two letters here and seldom
says how the first word sounds. So such an example begins with LEAD_FRAMES of silence, unless a transcribed reference
stands before it: then the text is ahead anyway.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from shapes import model_config
from synthesise import LEAD_FRAMES, voice_table
from voices import SPEAKERS

from tts_batch.model.prompt import EMPTY, REF_FRAME, X_VECTOR, Prompt, build_prompt
from tts_batch.model.text_tokenizer import TextTokenizer

NAMED_MIX = (  # share, task, non_streaming, x_vector_only
    (0.60, "custom_voice", True, False),
    (0.40, "custom_voice", False, False),
)
NAMELESS_MIX = (
    (0.15, "base", False, True),
    (0.13, "base", True, True),
    (0.26, "base", False, False),
    (0.42, "base", True, False),
    (0.04, "voice_design", True, False),
)
LANGUAGES = ("auto",) * 9 + ("english",) * 9 + ("german", "chinese")  # the voice speaks English whatever the tag
ROW = 512  # positions; what is longer is not learnt
REFERENCES = 3  # x-vectors in a row
MAX_REFERENCE_FRAMES = 110
ROUNDS = 2  # examples of each clip
NO_TARGET, END = -1, -2
NAMES = list(SPEAKERS)


@dataclass
class Clips:
    """The data of a shard that examples need, without audio and codes.

    Before each clip's first frame there are LEAD_FRAMES of silence.
    """

    texts: list[str]
    instructs: list[str]
    voices: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


@dataclass
class Example:
    """Ids of one sequence, position by position, and the clip that its x-vector is taken from (or -1)."""

    text: list[int]  # a text id or EMPTY
    codec: list[int]  # an id of the talker's codec table, EMPTY, X_VECTOR or REF_FRAME for any whole frame
    frame: list[int]  # which frame of the shard stands here, or -1
    target: list[int]  # which frame of the shard comes next, END or NO_TARGET
    reference: int


@dataclass
class Rows:
    """Examples end to end: int32 [R, ROW], and up to REFERENCES clips of which each row needs x-vectors."""

    text: np.ndarray
    codec: np.ndarray
    frame: np.ndarray
    target: np.ndarray
    segment: np.ndarray  # which example a position belongs to, or -1
    place: np.ndarray  # [R, REFERENCES]: where an x-vector stands, or -1
    reference: np.ndarray  # [R, REFERENCES, 2]: first frame and number of frames of its clip


class ExampleMaker:
    """Lays out the prompts of clips."""

    def __init__(self) -> None:
        self.configs = {kind: model_config(kind) for kind in ("base", "custom_voice", "voice_design")}
        self.tokenizer = TextTokenizer(Path(__file__).parent / "tokenizer")
        self.voices = voice_table()

    def rows(self, clips: Clips, rng: random.Random) -> Rows:
        """Make ROUNDS examples of each clip, in random rows."""
        of_voice: dict[int, list[int]] = {}
        for clip, voice in enumerate(clips.voices.tolist()):
            if not clips.instructs[clip] and clips.lengths[clip] <= MAX_REFERENCE_FRAMES:
                of_voice.setdefault(voice, []).append(clip)
        examples = [self.make(clips, clip, of_voice, rng) for clip in range(len(clips.texts)) for _ in range(ROUNDS)]
        rng.shuffle(examples)
        return pack([example for example in examples if len(example.text) <= ROW], clips)

    def make(self, clips: Clips, clip: int, of_voice: dict[int, list[int]], rng: random.Random) -> Example:
        """Draw one example of a clip."""
        voice = int(clips.voices[clip])
        mix = NAMED_MIX if voice < len(NAMES) else NAMELESS_MIX
        _, task, non_streaming, x_vector_only = rng.choices(mix, [share for share, *_ in mix])[0]
        others = [i for i in of_voice.get(voice, ()) if i != clip]
        if task == "base" and not others:
            task, non_streaming = "voice_design", True
        reference = rng.choice(others) if task == "base" else -1
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
        return self._lay_out(prompt, clips, clip, reference, lead=0 if non_streaming or icl else LEAD_FRAMES)

    def _lay_out(self, prompt: Prompt, clips: Clips, clip: int, reference: int, lead: int) -> Example:
        length = int(clips.lengths[clip]) + lead
        tts_pad = self.configs["base"].tts_pad_token_id
        spoken = range(clips.starts[clip] - lead, clips.starts[clip] - lead + length)
        trailing = [*prompt.trailing_ids[:length], *[tts_pad] * (length - len(prompt.trailing_ids))]
        heard = iter(range(clips.starts[reference], clips.starts[reference] + clips.lengths[reference]))
        frame = [*(next(heard) if codec == REF_FRAME else -1 for codec in prompt.codec_ids), *spoken]
        # The frames of a transcribed reference are trained too: its text precedes them.
        target = [*frame[1:], END]
        target[prompt.num_tokens - 1] = spoken[0]
        return Example(
            text=[*prompt.text_ids, *trailing],
            codec=[*prompt.codec_ids, *[REF_FRAME] * length],
            frame=frame,
            target=target,
            reference=reference if X_VECTOR in prompt.codec_ids else -1,
        )


def pack(examples: list[Example], clips: Clips) -> Rows:
    """Put each example into the first row that has room for it."""
    rows: list[list[Example]] = []
    room: list[tuple[int, int]] = []  # positions, references
    for example in examples:
        length, voices = len(example.text), int(example.reference >= 0)
        fitting = (n for n, left in enumerate(room) if left[0] >= length and left[1] >= voices)
        number = next(fitting, len(rows))
        if number == len(rows):
            rows.append([])
            room.append((ROW, REFERENCES))
        rows[number].append(example)
        room[number] = (room[number][0] - length, room[number][1] - voices)

    shape = (len(rows), ROW)
    made = Rows(
        text=np.full(shape, EMPTY, np.int32),
        codec=np.full(shape, EMPTY, np.int32),
        frame=np.full(shape, -1, np.int32),
        target=np.full(shape, NO_TARGET, np.int32),
        segment=np.full(shape, -1, np.int32),
        place=np.full((len(rows), REFERENCES), -1, np.int32),
        reference=np.tile(np.array([0, 10], np.int32), (len(rows), REFERENCES, 1)),
    )
    for number, row in enumerate(rows):
        at = voices = 0
        for segment, example in enumerate(row):
            span = slice(at, at + len(example.text))
            for name in ("text", "codec", "frame", "target"):
                getattr(made, name)[number, span] = getattr(example, name)
            made.segment[number, span] = segment
            if example.reference >= 0:
                made.place[number, voices] = at + example.codec.index(X_VECTOR)
                made.reference[number, voices] = clips.starts[example.reference], clips.lengths[example.reference]
                voices += 1
            at = span.stop
    return made
