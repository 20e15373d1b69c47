"""One row's plan: its model, its pieces and their frames, its seed and its fingerprint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tts_batch.config import JobConfig
from tts_batch.dataset.audio import examine_reference
from tts_batch.dataset.notes import Notes
from tts_batch.engine.request import SamplingParams
from tts_batch.errors import RowError
from tts_batch.plan.budget import FRAMES_PER_S, plan_frames
from tts_batch.plan.checks import check_task, note_length, note_row
from tts_batch.plan.models import ModelGroup, Models
from tts_batch.plan.seeds import derive_seed
from tts_batch.plan.split import split_text
from tts_batch.records import Failure, Row

_LIKE_A_TAKE = re.compile(r".*__take[0-9]+", re.DOTALL)
TEMPLATE_POSITIONS = 32  # of a prompt, beside its texts and its reference


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """The text of one request: a whole text, or a part of one that is split."""

    text: str
    max_frames: int
    expected_frames: int
    prompt_positions: int  # of all texts, the reference and the template


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRow:
    """A row with its plan; a failed one has no plan."""

    row: Row
    model_group: ModelGroup | None = None
    reference_key: str | None = None  # the content key of its reference
    pieces: tuple[PlannedPiece, ...] = ()  # of its text, in order; most often one
    take: int = 0  # of --takes, from 0
    seed: int = 0  # of the first attempt; `check_rows` leaves it out
    fingerprint: str = ""  # `check_rows` leaves it out

    @property
    def max_frames(self) -> int:
        """Of all pieces together."""
        return sum(piece.max_frames for piece in self.pieces)

    @property
    def expected_frames(self) -> int:
        """Of all pieces together."""
        return sum(piece.expected_frames for piece in self.pieces)

    @property
    def is_split(self) -> bool:
        return len(self.pieces) > 1

    @property
    def input_id(self) -> str:
        """The id in the table; of a further take, `row.id` is another."""
        return self.row.id.removesuffix(_take_suffix(self.take))

    @property
    def sampling(self) -> SamplingParams:
        assert self.model_group is not None, "a failed row is not sampled"
        return self.model_group.sampling


def plan_rows(rows: Iterable[Row], config: JobConfig, models: Models, notes: Notes) -> Iterator[PlannedRow]:
    """Plan rows one by one; one that cannot be made keeps its place, with a failure."""
    for checked in check_rows(rows, config, models, notes):
        yield _with_fingerprint(checked, config)


def check_rows(rows: Iterable[Row], config: JobConfig, models: Models, notes: Notes) -> Iterator[PlannedRow]:
    """As `plan_rows`, without seeds and fingerprints, which only a run needs."""
    for row in rows:
        if row.failure is not None:
            yield PlannedRow(row)
        elif config.takes == 1:
            yield _check(row, config, models, notes)
        else:
            yield from _takes(row, config, models, notes)


def _takes(row: Row, config: JobConfig, models: Models, notes: Notes) -> Iterator[PlannedRow]:
    """Yield a row once for each take; one that cannot be made, once."""
    if _LIKE_A_TAKE.fullmatch(row.id):
        message = f"the id {row.id!r} ends like the id of a take: with --takes, choose another."
        yield PlannedRow(replace(row, failure=Failure("bad_id", message)))
        return
    checked = _check(row, config, models, notes)
    for take in range(config.takes if checked.model_group else 1):
        yield replace(checked, take=take, row=replace(checked.row, id=row.id + _take_suffix(take)))


def _take_suffix(take: int) -> str:
    """Return what follows the id in the table: nothing for the first take, so that more can be added later."""
    return f"__take{take + 1}" if take else ""


def _check(row: Row, config: JobConfig, models: Models, notes: Notes) -> PlannedRow:
    task = row.task
    try:
        group, task = models.assign(row)
        return _checked(replace(row, task=task) if row.task != task else row, group, config, notes)
    except RowError as error:
        return PlannedRow(replace(row, task=task, failure=Failure(error.reason, error.message)))


def _checked(row: Row, group: ModelGroup, config: JobConfig, notes: Notes) -> PlannedRow:
    if group.checkpoint is not None:
        check_task(row, group.checkpoint.config)
    reference_key, reference_s = None, None
    if row.ref_audio is not None:
        reference_s, reference_key = examine_reference(row.ref_audio)
    other_positions = TEMPLATE_POSITIONS + round((reference_s or 0) * FRAMES_PER_S)
    other_positions += sum(group.tokenizer.count_cached(text) for text in (row.ref_text, row.instruct) if text)
    texts = [row.text] if config.split_text is None else split_text(row.text, config.split_text)
    pieces = tuple(_piece(text, row, config, group, other_positions) for text in texts)
    note_length(row, group, [piece.expected_frames / FRAMES_PER_S for piece in pieces], notes)
    note_row(row, group, reference_s, notes)
    return PlannedRow(row, group, reference_key, pieces)


def _piece(text: str, row: Row, config: JobConfig, group: ModelGroup, other_positions: int) -> PlannedPiece:
    """Plan a request. Raises RowError(text_too_long) and (bad_row) beyond the model's limits."""
    num_text_tokens = group.tokenizer.count(text)
    prompt = num_text_tokens + other_positions
    expected, budget = plan_frames(num_text_tokens, row.language, group.max_frames, group.frames_per_token)
    if expected > group.max_frames:
        raise RowError(
            "text_too_long",
            f"the text has {num_text_tokens} tokens, about {expected / FRAMES_PER_S:.0f} s of speech, and the "
            f"model's limit is {group.max_frames} frames ({group.max_frames / FRAMES_PER_S:.0f} s): split it, "
            "or use --split-text.",
        )
    max_frames = row.max_frames or config.max_frames or budget
    if prompt + max_frames > group.max_positions:
        raise RowError(
            "text_too_long" if prompt > group.max_positions // 2 else "bad_row",
            f"prompt and max_frames take {prompt} + {max_frames} positions, and the model has {group.max_positions}: "
            "shorten the texts, or lower --max-frames or the row's max_frames.",
        )
    return PlannedPiece(text, max_frames, min(expected, max_frames), prompt)


def _with_fingerprint(checked: PlannedRow, config: JobConfig) -> PlannedRow:
    row, group = checked.row, checked.model_group
    if group is None:
        return checked
    seed = derive_seed(config.seed, checked.input_id, take=checked.take, explicit=row.seed)
    non_streaming = row.non_streaming if row.non_streaming is not None else group.text_first
    # What is not an engine's default is given to it in the row.
    given = True if non_streaming and row.task == "base" else row.non_streaming
    if row.non_streaming != given:
        row = replace(row, non_streaming=given)
    fingerprint = group.fingerprints.of(
        row,
        voice_key=checked.reference_key,
        non_streaming=non_streaming,
        max_frames=checked.max_frames,
        seed=seed,
        pieces=[(piece.text, piece.max_frames) for piece in checked.pieces] if checked.is_split else (),
    )
    return replace(checked, row=row, seed=seed, fingerprint=fingerprint)
