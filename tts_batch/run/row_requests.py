"""From a plan to messages: the RowRequest of a planned row, and the first message to a worker."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, get_args

from tts_batch.cache import find_cache_folder
from tts_batch.config import JobConfig
from tts_batch.engine.request import FRAMES_PER_S, EngineConfig, Reference
from tts_batch.errors import ClipReason, Reason
from tts_batch.ipc.messages import (
    CheckLimits,
    ClipRules,
    Deadlines,
    EngineLabels,
    OpenEngine,
    PieceRequest,
    RowRequest,
    SegmentNames,
)
from tts_batch.plan.seeds import derive_seed
from tts_batch.run.devices import Device
from tts_batch.store.index import input_digest
from tts_batch.store.journal import Outcome

if TYPE_CHECKING:
    from tts_batch.plan.models import ModelGroup
    from tts_batch.plan.planner import GroupTotals
    from tts_batch.plan.rows import PlannedRow

NOISY = ("tiny-random",)  # makes noise of any length, whatever the text
MAX_CLIP_PROCESSES = 8  # some 400 clips a second each

NEW_SEED_HELPS: tuple[Reason, ...] = get_args(ClipReason)
"""Reasons that lie in what was sampled: the same seed would fail again. After others a retry takes the same seed."""


def open_engine_message(
    config: JobConfig,
    group: GroupTotals,
    num_workers: int,
    limits: tuple[float, float],
    device: Device,
    segments: SegmentNames,
) -> OpenEngine:
    """Return the first message to a worker. `limits`: how long its engine may owe a result, and more for each frame."""
    model = group.model
    return OpenEngine(
        out=config.out.resolve(),
        segments=segments,
        engine=config.engine,
        engine_config=engine_config(config, model, device.kind, group.longest_frames),
        rules=clip_rules(config, model),
        labels=EngineLabels(model.name, model.revision, config.engine),
        deadlines=Deadlines(*limits, config.row_time_limit),
        max_clip_processes=max(1, min(MAX_CLIP_PROCESSES, len(os.sched_getaffinity(0)) // (2 * num_workers))),
        task=model.task,
    )


def clip_rules(config: JobConfig, model: ModelGroup) -> ClipRules:
    """Return what the clips of one of the run's models are held to."""
    return ClipRules(
        limits=CheckLimits.of(config.checks, speaks=model.name not in NOISY),
        trim_margin_s=config.trim_margin_s if config.trim else None,
        split_pause_s=config.split_pause_s,
        format=config.format,
        save_codes=config.save_codes,
        keep_failed_audio=config.keep_failed_audio,
    )


def engine_config(
    config: JobConfig, model: ModelGroup, device_kind: str, max_frames: int | None = None
) -> EngineConfig:
    """Return what an engine for one of the run's models is opened with; `max_frames`: the longest budget to come."""
    return EngineConfig(
        model=str(model.checkpoint.path) if model.checkpoint else "",
        model_revision=model.revision,
        device=device_kind,
        dtype=config.dtype,
        runner=config.runner,
        profile=config.profile,
        code2wav_mode=config.code2wav_mode,
        loop_frames=config.loop_frames,
        placement=config.placement,
        cuda_graph=config.cuda_graph,
        eager=config.eager,
        max_num_seqs=config.max_num_seqs,
        stall_timeout_s=config.stall_timeout,
        options=_engine_options(config, model),
        max_frames=max_frames,
        cache_dir=str(cache) if (cache := find_cache_folder()) else None,
    )


def _engine_options(config: JobConfig, model: ModelGroup) -> dict[str, str]:
    """Return --engine-option; for vllm, which cannot vary it from row to row, how residual codes are sampled too."""
    if config.engine != "vllm":
        return config.engine_options
    residual = {
        name: json.dumps(value) for name, value in asdict(model.sampling).items() if name.startswith("subtalker_")
    }
    return residual | config.engine_options


def row_request(
    planned: PlannedRow, config: JobConfig, reference: Reference | None, reopened: Outcome | None = None
) -> RowRequest:
    """Return what a worker needs to know of a row; its seeds are those of the attempts that the row may have now.

    `reopened` is the line that put a row back among the pending ones: its attempts count.
    """
    row = planned.row
    assert row.task is not None, "a row that failed in the plan is not made"
    seeds_before = reopened.attempt_seeds if reopened else ()
    num_tried = len(set(seeds_before))
    if reopened and reopened.reason is not None and reopened.reason not in NEW_SEED_HELPS:
        num_tried -= 1  # what was sampled was not at fault: the same again
    return RowRequest(
        id=row.id,
        task=row.task,
        pieces=tuple(_piece_request(planned, number, config, num_tried) for number in range(len(planned.pieces))),
        sampling=planned.sampling,
        fingerprint=planned.fingerprint,
        input_digest=input_digest(planned),
        language=row.language,
        speaker=row.speaker,
        instruct=row.instruct,
        x_vector_only=row.x_vector_only,
        non_streaming=row.non_streaming,
        reference=reference,
        seeds_before=tuple(seeds_before),
        failed_before=tuple(reopened.failed_attempts) if reopened else (),
    )


def piece_id(row_id: str, number: int) -> str:
    """Return the request id of a row's piece, counted from 0. No row has it: ids hold no control characters."""
    return f"{row_id}\x1f{number + 1}"


def _piece_request(planned: PlannedRow, number: int, config: JobConfig, num_attempts_before: int) -> PieceRequest:
    piece = planned.pieces[number]
    return PieceRequest(
        request_id=piece_id(planned.row.id, number) if planned.is_split else planned.row.id,
        text=piece.text,
        max_frames=piece.max_frames,
        expected_s=piece.expected_frames / FRAMES_PER_S,
        seeds=tuple(piece_seeds(planned, number, config, num_attempts_before)),
    )


def piece_seeds(planned: PlannedRow, number: int, config: JobConfig, num_attempts_before: int = 0) -> list[int]:
    """Return the seeds of the next attempts of a row's piece, counted from 0, after `num_attempts_before` ones.

    An explicit seed is not changed unless that is asked for, and without sampling a seed changes nothing.
    """
    sampling, explicit = planned.sampling, planned.row.seed
    derive = partial(derive_seed, config.seed, planned.input_id, take=planned.take, piece=number, explicit=explicit)
    if not (sampling.do_sample or sampling.subtalker_dosample):
        return [derive()]
    if explicit is not None and not config.retry_changes_seed:
        return [derive()]
    return [derive(attempt=attempt) for attempt in range(num_attempts_before, num_attempts_before + config.attempts)]
