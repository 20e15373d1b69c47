"""The talker's prompt of a request, in the official layouts, as ids without tensors.

Every prompt position adds a text part and a codec part; `embed_prompt` turns the ids into vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat, zip_longest

import torch
from torch import Tensor

from tts_batch.model.config import ModelConfig
from tts_batch.model.talker import Talker
from tts_batch.model.text_tokenizer import TextTokenizer

EMPTY, X_VECTOR, REF_FRAME = -1, -2, -3
"""Ids below 0: no vector, the speaker's x-vector, the next frame of the reference."""


class PromptError(Exception):
    """A request that this model cannot synthesise. `reason` is one of the closed list of row reasons."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Prompt:
    """The input of the talker's prefill, position by position.

    `trailing_ids` is the text beside the generated frames, one id a frame; then tts_pad repeats.
    `effective` has the values that were applied: `language` ("auto", or the name of the tag), and `speaker` and
    `instruct` if the prompt has one.
    """

    text_ids: tuple[int, ...]  # a text id or EMPTY
    codec_ids: tuple[int, ...]  # a first-codebook id, EMPTY, X_VECTOR or REF_FRAME
    trailing_ids: tuple[int, ...]
    effective: dict[str, str]
    num_text_tokens: int

    @property
    def num_tokens(self) -> int:
        """The number of positions."""
        return len(self.text_ids)


def embed_prompt(talker: Talker, prompt: Prompt, ref_codes: Tensor | None, x_vector: Tensor | None) -> Tensor:
    """The prompt's vectors [num_tokens, H]: ref_codes [T, 16] and x_vector [H] fill the positions marked for them."""
    text_ids, codec_ids = (torch.tensor(ids, device=talker.device) for ids in (prompt.text_ids, prompt.codec_ids))
    vectors = talker.project_text(text_ids.clamp(min=0)).masked_fill((text_ids == EMPTY)[:, None], 0)
    codec = talker.embed_code0(codec_ids.clamp(min=0)).masked_fill((codec_ids < 0)[:, None], 0)
    if x_vector is not None:
        codec[codec_ids == X_VECTOR] = x_vector.to(codec)
    if ref_codes is not None and REF_FRAME in prompt.codec_ids:
        codec[codec_ids == REF_FRAME] = talker.embed_frames(ref_codes.to(talker.device, torch.long))
    return vectors + codec


def build_prompt(
    config: ModelConfig,
    tokenizer: TextTokenizer,
    *,
    text: str,
    task: str,
    language: str | None = None,
    speaker: str | None = None,
    instruct: str | None = None,
    ref_text: str | None = None,
    num_ref_frames: int | None = None,
    has_x_vector: bool = False,
    x_vector_only: bool = False,
    non_streaming: bool | None = None,
) -> Prompt:
    """Build the prompt of one request.

    `num_ref_frames` and `has_x_vector` describe the encoded reference of task "base". Fields that the task does not
    use are ignored, as in the official package, and absent from `effective`: a speaker outside CustomVoice, an
    instruct for Base and for the 0.6B CustomVoice. `non_streaming` None is the official default: False for "base",
    else True.

    Raises PromptError when the request does not suit the model.
    """
    if task != config.kind:
        raise PromptError("wrong_task", f"task {task!r} needs a {task} checkpoint; this one is {config.kind}.")
    speaker = _built_in_speaker(config, speaker) if task == "custom_voice" else None
    language = _language_name(config, language, speaker)
    if not config.takes_instruct:
        instruct = None
    icl = task == "base" and not x_vector_only
    if task == "base" and (not has_x_vector or (icl and num_ref_frames is None)):
        raise PromptError("ref_missing", "task 'base' needs a reference voice.")
    if icl and not ref_text:
        raise PromptError("ref_text_missing", "a reference needs its transcript, unless x_vector_only is set.")
    text_ids = _encode(tokenizer, text)
    if not text_ids:
        raise PromptError("empty_text", "the text is empty.")

    positions: list[tuple[int, int]] = []  # text id, codec id
    im_start, im_end, tts_pad = config.im_start_token_id, config.im_end_token_id, config.tts_pad_token_id
    codec_pad = config.talker.codec_pad_id
    if instruct:
        user = [*tokenizer.encode("user\n"), *_encode(tokenizer, instruct)]
        positions += zip([im_start, *user, im_end, *tokenizer.encode("\n")], repeat(EMPTY))
    positions += zip([im_start, *tokenizer.encode("assistant\n")], repeat(EMPTY))
    positions += zip(repeat(tts_pad), _language_tag(config, language))
    if speaker:
        positions.append((tts_pad, config.speakers[speaker]))
    elif task == "base":
        positions.append((tts_pad, X_VECTOR))
    positions.append((config.tts_bos_token_id, codec_pad))

    spoken = [*(_encode(tokenizer, ref_text) if icl and ref_text else ()), *text_ids, config.tts_eos_token_id]
    codec = [config.talker.codec_bos_id, *[REF_FRAME] * (num_ref_frames or 0 if icl else 0)]
    trailing: list[int] = []
    if non_streaming or (non_streaming is None and task != "base"):
        positions += zip(spoken, repeat(codec_pad))  # the whole text first, then the codec part
        positions += zip(repeat(tts_pad), codec)
    else:
        spoken, trailing = spoken[: len(codec)], spoken[len(codec) :]  # side by side
        positions += zip_longest(spoken, codec, fillvalue=tts_pad)
    applied = {"language": language, "speaker": speaker, "instruct": instruct}
    return Prompt(
        text_ids=tuple(text_id for text_id, _ in positions),
        codec_ids=tuple(codec_id for _, codec_id in positions),
        trailing_ids=tuple(trailing),
        effective={name: value for name, value in applied.items() if value},
        num_text_tokens=len(text_ids),
    )


def _language_tag(config: ModelConfig, language: str) -> list[int]:
    codec = config.talker
    if language == "auto":
        return [codec.codec_nothink_id, codec.codec_think_bos_id, codec.codec_think_eos_id]
    return [codec.codec_think_id, codec.codec_think_bos_id, config.languages[language], codec.codec_think_eos_id]


def _built_in_speaker(config: ModelConfig, speaker: str | None) -> str:
    name = (speaker or "").lower()
    if name not in config.speakers:
        raise PromptError("bad_speaker", f"speaker {speaker!r} is not one of {', '.join(config.speakers)}.")
    return name


def _language_name(config: ModelConfig, language: str | None, speaker: str | None) -> str:
    """Return the name of the language tag: a dialect speaker turns Chinese and auto into their dialect."""
    language = (language or "auto").lower()
    if language not in config.supported_languages:
        known = ", ".join(config.supported_languages)
        raise PromptError("bad_language", f"language {language!r} is not one of {known}.")
    dialect = config.dialects.get(speaker) if speaker else False
    return str(dialect) if dialect and language in ("auto", "chinese") else language


def _encode(tokenizer: TextTokenizer, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError("bad_text", f"the text holds a lone surrogate at character {error.start}.") from error
    return tokenizer.encode(text)
