"""The checkpoint of a row: the one that --model names, or the released one that fits the row's columns.

An engine of the user's own needs none: without --model, nothing is asked of a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tts_batch.cache import cache_folder, unusable
from tts_batch.choices import TASKS, TINY_MODELS, Task
from tts_batch.config import JobConfig
from tts_batch.engine.request import SamplingParams
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.model.checkpoint import OFFICIAL, Checkpoint, CheckpointError, resolve_checkpoint
from tts_batch.object_store import is_url
from tts_batch.plan.budget import TINY_FRAMES_PER_TOKEN
from tts_batch.plan.checks import task_of
from tts_batch.plan.fetch_model import fetch_model
from tts_batch.plan.fingerprint import RowFingerprints, weights_identity
from tts_batch.records import Row

if TYPE_CHECKING:
    from tts_batch.model.text_tokenizer import TextTokenizer


@dataclass(frozen=True, eq=False)
class ModelGroup:
    """A checkpoint that some rows of a run share, and how they are sampled."""

    name: str
    task: Task | None  # None: of any task
    checkpoint: Checkpoint | None  # None: the model is the engine's own, and is not asked for anything
    sampling: SamplingParams
    weights: str  # identity, for fingerprints
    fingerprints: RowFingerprints

    @property
    def revision(self) -> str | None:
        """The commit of a checkpoint of the hub."""
        return self.checkpoint.revision if self.checkpoint else None

    @property
    def max_frames(self) -> int:
        """The checkpoint's own limit, without the last token, which only ends a clip."""
        return self.sampling.max_new_tokens - 1

    @property
    def frames_per_token(self) -> float | None:
        """Frames of speech for a token of text, where it differs from the released models."""
        return TINY_FRAMES_PER_TOKEN if self.name == "tiny" else None

    @property
    def text_first(self) -> bool:
        """Whether rows are non-streaming by default: as in the official model, except for the clones of `tiny`.

        That voice learnt the streaming layout, text and frames side by side, worst.
        """
        return self.task != "base" or self.name == "tiny"

    @property
    def max_positions(self) -> int:
        """Prompt and frames together."""
        return self.checkpoint.config.talker.max_position_embeddings if self.checkpoint else 2**31

    @cached_property
    def tokenizer(self) -> TextTokenizer | TokenEstimate:
        if self.checkpoint is None:
            return TokenEstimate()
        from tts_batch.model.text_tokenizer import TextTokenizer

        return TextTokenizer(self.checkpoint.path)


class TokenEstimate:
    """Counts tokens as the released models' tokenizer would, roughly: one for four letters, or for 1.4 Han."""

    def count(self, text: str) -> int:
        num_wide = sum(character >= "\u2e80" for character in text)
        return math.ceil((len(text) - num_wide) / 4 + num_wide / 1.4)

    count_cached = count


def find_checkpoint(model: str, revision: str | None = None, task: Task = "custom_voice") -> Checkpoint:
    """Return the checkpoint that --model names; of the tiny families, which have all kinds, the one for `task`.

    Raises CannotContinueError when it is unavailable.
    """
    try:
        if model not in TINY_MODELS:
            if is_url(model):
                return replace(resolve_checkpoint(str(fetch_model(model))), name=model)
            return resolve_checkpoint(model, revision)
        from tts_batch.model.tiny import build_tiny

        folder = cache_folder()
        try:
            return replace(resolve_checkpoint(str(build_tiny(model, task, cache_dir=folder))), name=model)
        except OSError as error:
            raise unusable(folder, error) from error
    except CheckpointError as error:
        raise CannotContinueError(str(error)) from error


class Models:
    """The checkpoints of a run, each resolved when the first row needs it."""

    def __init__(self, config: JobConfig) -> None:
        """Raises CannotContinueError when the model of --model is unavailable, UsageError for an invalid option."""
        self._config = config
        self.groups: dict[Task | None, ModelGroup] = {}
        self._fixed: Task | None = None
        if config.model is None and config.model_revision is not None:
            raise UsageError("--model-revision needs --model, whose revision it names.")
        if config.model is None and ":" in config.engine:
            self.groups[None] = self._group(config.engine, None, None, {}, config.engine)
        elif config.model is not None and config.model not in TINY_MODELS:
            group = self._open(find_checkpoint(config.model, config.model_revision))
            self._fixed = group.task
            self.groups[group.task] = group

    def assign(self, row: Row) -> tuple[ModelGroup, Task]:
        """Return the group that speaks a row, and the row's task.

        Raises RowError when the row and --model ask for different tasks, CannotContinueError when the checkpoint that
        fits the row is unavailable.
        """
        task = task_of(row, self._fixed)
        group = self.groups.get(None) or self.groups.get(task)
        if group is None:
            group = self.groups[task] = self._open(find_checkpoint(self._config.model or OFFICIAL[task], task=task))
        return group, task

    def _open(self, checkpoint: Checkpoint) -> ModelGroup:
        task = next(task for task in TASKS if task == checkpoint.config.kind)
        weights = weights_identity(checkpoint)
        group = self._group(checkpoint.name, task, checkpoint, checkpoint.generation, weights)
        if (self._config.max_frames or 0) >= group.max_positions:
            raise UsageError(
                f"--max-frames {self._config.max_frames} is beyond the model's {group.max_positions} positions."
            )
        return group

    def _group(
        self, name: str, task: Task | None, checkpoint: Checkpoint | None, generation: Mapping[str, Any], weights: str
    ) -> ModelGroup:
        sampling = _sampling(self._config, generation)
        return ModelGroup(name, task, checkpoint, sampling, weights, RowFingerprints(self._config, weights, sampling))


def _sampling(config: JobConfig, generation: Mapping[str, Any]) -> SamplingParams:
    """Return the sampling of a generation_config.json, with the options of the command line over it."""
    names = {field.name for field in fields(SamplingParams)}
    given = config.model_dump(include=names, exclude_none=True)
    if config.greedy:
        given |= {"do_sample": False, "subtalker_dosample": False}
    return replace(SamplingParams(**generation), **given)
