"""From a request's words and voice to the talker's input vectors, in the official layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tts_batch.model.config import ModelConfig
from tts_batch.model.talker import Talker
from tts_batch.model.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from tts_batch.model.qwen3_tts import Qwen3TTS


class PromptError(Exception):
    """A request that this model cannot speak. `reason` is one of the closed list of row reasons."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What the talker starts from.

    `embeds` [L, H] is the prefill. `trailing` [Tt, H], Tt >= 1, is added to the frame vectors one by one while
    decoding; after it comes the tts_pad vector, for ever. `effective` says what was really applied: `language`
    ("auto", or the name of the tag), `speaker` and `instruct`, the last two only if there is one in the prompt.
    """

    embeds: Tensor
    trailing: Tensor
    effective: dict[str, str]
    num_text_tokens: int


class PromptVectors:
    """The vectors that no request changes, computed once per model. All are [n, H]."""

    def __init__(self, talker: Talker, config: ModelConfig, tokenizer: TextTokenizer) -> None:
        codec = talker.config

        def text(ids: Sequence[int]) -> Tensor:
            return talker.project_text(torch.tensor(ids, device=talker.device))

        def code0(*ids: int) -> Tensor:
            return talker.embed_code0(torch.tensor(ids, device=talker.device))

        self.assistant = text([config.im_start_token_id, *tokenizer.encode("assistant\n")])
        self.user = text([config.im_start_token_id, *tokenizer.encode("user\n")])
        self.end = text([config.im_end_token_id, *tokenizer.encode("\n")])
        self.tts_pad, self.tts_bos, self.tts_eos = text(
            [config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id]
        ).split(1)
        self.codec_pad, self.codec_bos = code0(codec.codec_pad_id, codec.codec_bos_id).split(1)
        self.speakers = {name: code0(row) for name, row in config.speakers.items()}
        self.languages = {
            name: code0(codec.codec_think_id, codec.codec_think_bos_id, row, codec.codec_think_eos_id)
            for name, row in config.languages.items()
        }
        self.languages["auto"] = code0(codec.codec_nothink_id, codec.codec_think_bos_id, codec.codec_think_eos_id)


def build_prompt(
    model: Qwen3TTS,
    *,
    text: str,
    task: str,
    language: str | None = None,
    speaker: str | None = None,
    instruct: str | None = None,
    ref_text: str | None = None,
    ref_codes: Tensor | None = None,
    x_vector: Tensor | None = None,
    x_vector_only: bool = False,
    non_streaming: bool | None = None,
) -> Prompt:
    """Build the prompt of one request.

    `ref_codes` [T, 16] and `x_vector` [H] are the reference of task "base". What the task has no place for is left
    out, as the official package does, and missing in `effective`: a speaker outside CustomVoice, an instruct for
    Base and for the 0.6B CustomVoice. `non_streaming` None is the official default: False for "base", else True.

    Raises PromptError when the request does not fit the model.
    """
    config, vectors, tokenizer = model.config, model.prompt_vectors, model.text_tokenizer
    if task != config.kind:
        raise PromptError("wrong_task", f"task {task!r} needs a {task} checkpoint; this one is {config.kind}.")
    speaker = _built_in_speaker(config, speaker) if task == "custom_voice" else None
    language = _spoken_language(config, language, speaker)
    if not config.takes_instruct:
        instruct = None
    icl = task == "base" and not x_vector_only
    if task == "base" and (x_vector is None or (icl and ref_codes is None)):
        raise PromptError("ref_missing", "task 'base' needs a reference voice.")
    if icl and not ref_text:
        raise PromptError("ref_text_missing", "a reference needs its transcript, unless x_vector_only is set.")

    instruct_ids = _encode(tokenizer, instruct) if instruct else []
    ref_ids = _encode(tokenizer, ref_text) if icl and ref_text else []
    text_ids = _encode(tokenizer, text)
    if not text_ids:
        raise PromptError("empty_text", "the text is empty.")
    ids = torch.tensor([*instruct_ids, *ref_ids, *text_ids], device=model.device)
    instruct_vectors, spoken = model.talker.project_text(ids).tensor_split([len(instruct_ids)])

    head = [vectors.user, instruct_vectors, vectors.end] if instruct else []
    head += [vectors.assistant, vectors.tts_pad + vectors.languages[language]]
    if speaker:
        head.append(vectors.tts_pad + vectors.speakers[speaker])
    elif task == "base" and x_vector is not None:
        head.append(vectors.tts_pad + x_vector.to(vectors.tts_pad))
    head.append(vectors.tts_bos + vectors.codec_pad)

    frames = None
    if icl and ref_codes is not None:
        frames = model.talker.embed_frames(ref_codes.to(model.device, torch.long))
    if non_streaming is None:
        non_streaming = task != "base"
    body, trailing = (_whole_text if non_streaming else _streamed_text)(vectors, spoken, frames)
    applied = {"language": language, "speaker": speaker, "instruct": instruct}
    effective = {name: value for name, value in applied.items() if value}
    return Prompt(torch.cat([*head, body]), trailing, effective, len(text_ids))


def _whole_text(vectors: PromptVectors, text: Tensor, frames: Tensor | None) -> tuple[Tensor, Tensor]:
    """All text first, then the reference's frames if any: body and trailing text of the non-streaming layout."""
    text = torch.cat([text, vectors.tts_eos]) + vectors.codec_pad
    codec = vectors.codec_bos if frames is None else torch.cat([vectors.codec_bos, frames])
    return torch.cat([text, codec + vectors.tts_pad]), vectors.tts_pad


def _streamed_text(vectors: PromptVectors, text: Tensor, frames: Tensor | None) -> tuple[Tensor, Tensor]:
    """Text and codec side by side; the text that reaches beyond the codec part trails into decoding."""
    text = torch.cat([text, vectors.tts_eos])
    codec = vectors.codec_bos if frames is None else torch.cat([vectors.codec_bos, frames])
    if len(text) > len(codec):
        return text[: len(codec)] + codec, text[len(codec) :]
    padding = vectors.tts_pad.expand(len(codec) - len(text), -1)
    return torch.cat([text, padding]) + codec, vectors.tts_pad


def _built_in_speaker(config: ModelConfig, speaker: str | None) -> str:
    name = (speaker or "").lower()
    if name not in config.speakers:
        raise PromptError("bad_speaker", f"speaker {speaker!r} is not one of {', '.join(config.speakers)}.")
    return name


def _spoken_language(config: ModelConfig, language: str | None, speaker: str | None) -> str:
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
