"""Runner v2: persistent rows on the device, continuous batching, whole frames replayed without host decisions.

One `step` admits a burst, prefills it, launches a window of frames, and then reads how the window before it ended:
the next window is always queued on the device while the host processes the last one. What must not enter: per-request
work that happens every frame, and any wait for the device other than `Flags.wait`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tts_batch.engine.choices import DEFAULT_MAX_FRAMES, KV_PAGE_TOKENS
from tts_batch.engine.cuda_graphs import CudaGraphs, bucket_for, row_buckets
from tts_batch.engine.kernels.backend import uses_triton
from tts_batch.engine.loops import DEFAULT_LIMITS, LoopLimits
from tts_batch.engine.meter import Meter
from tts_batch.engine.noise import seed_words
from tts_batch.engine.runner import EngineRow
from tts_batch.engine.staging import stage
from tts_batch.engine.v2.flags import Flags
from tts_batch.engine.v2.frame_loop import FrameLoop, PrefillRows, PrefillTokens
from tts_batch.engine.v2.packed import PackedTalker
from tts_batch.engine.v2.prompt_batch import embed_prompts
from tts_batch.engine.v2.request_state import (
    DONE_CANCELLED,
    DONE_EOS,
    DONE_LENGTH,
    DONE_LOOP,
    DONE_LOST,
    AdmittedRows,
    RequestState,
    StateShape,
    warp_rows,
)
from tts_batch.engine.v2.scheduler import PagePool, Scheduler
from tts_batch.model.prompt import PromptError

if TYPE_CHECKING:
    from tts_batch.model.qwen3_tts import Qwen3TTS

MAX_STRETCH = 4  # times as many frames as usual in a visit's window, where few rows decode
FINISH_REASONS = {DONE_EOS: "stop", DONE_LENGTH: "length", DONE_LOOP: "loop", DONE_LOST: "error"}


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Resolved knobs of runner v2 (see profiles/)."""

    max_num_seqs: int
    num_pages: int
    page_size: int = KV_PAGE_TOKENS
    frames_per_visit: int = 2  # frames replayed before the host looks at flags
    long_windows: bool = False  # more of them where few rows decode and none waits; on CUDA graphs
    prefill_tokens: int = 8_192  # most prompt tokens in one pass
    cuda_graph: bool = True
    max_frames: int = DEFAULT_MAX_FRAMES  # longest budget of a request
    max_model_len: int = 32_768  # longest prompt + budget
    wait_timeout_s: float = 30.0
    loop_limits: LoopLimits = DEFAULT_LIMITS
    small_batch_kernels: bool = True  # see engine/kernels/small_batch.py


class ContinuousRunner:
    """The Runner of the Model Runner V2 design."""

    def __init__(
        self, model: Qwen3TTS, settings: RunnerSettings, meter: Meter | None = None, weights: PackedTalker | None = None
    ) -> None:
        """A runner on a model's packed weights; where they are not given, it packs them."""
        self.settings = settings
        self._meter = meter or Meter()
        self._device = model.device
        config = model.config.talker
        self._weights = weights or PackedTalker.pack(model.talker, settings.max_model_len, settings.small_batch_kernels)
        self._pad_text_id = model.config.tts_pad_token_id
        self._max_pages = -(-settings.max_model_len // settings.page_size)
        dtype = self._weights.codec_head.dtype
        shape = StateShape(
            num_slots=settings.max_num_seqs + 1,  # the last one is the padding slot, which fills buckets
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            max_frames=settings.max_frames,
            max_trailing=settings.max_frames,
            max_pages=self._max_pages,
            pad_text_id=self._pad_text_id,
        )
        self._state = RequestState(shape, dtype, self._device)
        kv_pages = torch.zeros(
            config.num_hidden_layers, 2, settings.num_pages, config.num_key_value_heads, settings.page_size,
            config.head_dim, dtype=dtype, device=self._device,
        )  # fmt: skip
        self._loop = FrameLoop(self._weights, self._state, kv_pages, config.codec_eos_token_id, settings.loop_limits)
        on_graphs = settings.cuda_graph and self._device.type == "cuda"
        self._graphs = CudaGraphs(on_graphs, "frame loop", self._meter.graphs["frame_loop"], self._device)
        self._buckets = row_buckets(settings.max_num_seqs)
        self._bucket_slots = {
            b: torch.full((b,), self._padding_slot, dtype=torch.int32, device=self._device) for b in self._buckets
        }
        self.scheduler = Scheduler(
            settings.max_num_seqs,
            PagePool(settings.num_pages),
            settings.page_size,
            look_ahead=settings.max_num_seqs,
        )
        self._flags = [Flags(shape.num_slots, self._device) for _ in range(2)]
        self._window: _Window | None = None
        self._num_windows = 0
        self._harvested: set[EngineRow] = set()  # the rows that `_num_frames` [slots] describes
        self._num_frames = np.zeros(shape.num_slots, dtype=np.int32)

    @property
    def max_num_seqs(self) -> int:
        return self.scheduler.max_num_seqs

    @max_num_seqs.setter
    def max_num_seqs(self, value: int) -> None:
        self.scheduler.max_num_seqs = value

    @property
    def room(self) -> int:
        return self.scheduler.room

    @property
    def has_free_slots(self) -> bool:
        return len(self.scheduler.active) + self.scheduler.num_waiting < self.max_num_seqs

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.active or self.scheduler.num_waiting or self._window)

    def warm_up(self) -> None:
        """Capture the frame's graphs, the largest first; without graphs, compile its kernels. Prefill's too.

        The padding slot stands in for every row.
        """
        if self._graphs.enabled:
            for bucket in reversed(self._buckets):
                self._graphs.capture(bucket, lambda b=bucket: self._loop.run_frame(self._bucket_slots[b]))
        elif uses_triton(self._state.hidden):
            self._loop.run_frame(self._bucket_slots[self._buckets[-1]])
        if uses_triton(self._state.hidden):
            self._warm_up_prefill()

    @torch.inference_mode()
    def _warm_up_prefill(self, num_tokens: int = 16) -> None:
        """Run a prompt of one row whose keys and values are stored nowhere: no request compiles kernels."""
        device, hidden = self._device, self._state.hidden
        at = torch.arange(num_tokens, dtype=torch.int32, device=device)
        ends = torch.tensor([0, num_tokens], dtype=torch.int32, device=device)
        table = torch.zeros(1, self._max_pages, dtype=torch.int32, device=device)
        x = torch.zeros(num_tokens, hidden.shape[1], dtype=hidden.dtype, device=device)
        rows = PrefillRows(table, ends, starts=torch.zeros_like(ends[:1]), max_len=num_tokens)
        self._loop.run_prefill(PrefillTokens(x, at, torch.full_like(at, -1)), rows)

    def add(self, row: EngineRow) -> None:
        needed = self.scheduler.num_pages_for(row)
        if needed > self.scheduler.pages.num_pages or row.request.max_frames > self.settings.max_frames:
            raise PromptError(
                "text_too_long",
                f"a prompt of {row.prompt.num_tokens} tokens with a budget of {row.request.max_frames} frames does not "
                f"fit: at most {self.settings.max_frames} frames and "
                f"{self.scheduler.pages.num_pages * self.settings.page_size} tokens of KV cache. "
                "--max-frames lowers the budget.",
            )
        self.scheduler.add(row)

    @torch.inference_mode()
    def start_waiting(self) -> None:
        admitted = self.scheduler.admit(time.monotonic())
        if admitted:
            self._start(admitted)

    @torch.inference_mode()
    def step(self) -> list[EngineRow]:
        self.start_waiting()
        previous, self._window = self._window, self._launch_window()
        return self._harvest(previous) if previous else []

    def progress(self) -> list[tuple[EngineRow, int]]:
        waiting = [(row, -1) for row in self.scheduler.waiting]
        return waiting + [(row, self._known_frames(row)) for row in self.scheduler.active.values()]

    @torch.inference_mode()
    def codes_so_far(self, row: EngineRow, num_frames: int) -> Tensor:
        slot = next(active.slot for active in self.scheduler.active.values() if active is row)
        return self._state.codes[slot, :num_frames].clone()

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        if self.scheduler.drop_waiting(request_id):
            return True
        for active in self.scheduler.active.values():
            if active.request_id == request_id:
                self._state.done[active.slot] = DONE_CANCELLED
                self.scheduler.release(active)
                return True
        return False

    def evict(self) -> list[EngineRow]:
        rows = self.scheduler.evict()
        self._window = None
        self._harvested = set()
        self._state.done.fill_(DONE_CANCELLED)
        return rows

    @property
    def _padding_slot(self) -> int:
        return self.settings.max_num_seqs

    def _start(self, admitted: Sequence[EngineRow]) -> None:
        """Write the slots of new rows and run their prompts, in passes of at most `prefill_tokens` tokens."""
        requests = [active.request for active in admitted]
        prompts = [active.prompt for active in admitted]
        # One id goes with a frame: those beyond the budget are never reached.
        texts = [r.prompt.trailing_ids[: r.request.max_frames] for r in admitted]
        trailing = np.zeros((len(admitted), max(map(len, texts))), dtype=np.int32)
        pages = np.zeros((len(admitted), max(len(active.pages) for active in admitted)), dtype=np.int32)
        for i, (active, text) in enumerate(zip(admitted, texts, strict=True)):
            trailing[i, : len(text)] = text
            pages[i, : len(active.pages)] = active.pages
        lens = [prompt.num_tokens for prompt in prompts]
        floats, ints = warp_rows([r.sampling for r in requests])
        slots, *fields = stage(
            self._device,
            torch.tensor([active.slot for active in admitted]),
            *AdmittedRows(
                prompt_lens=torch.tensor(lens, dtype=torch.int32),
                max_frames=torch.tensor([r.max_frames for r in requests], dtype=torch.int32),
                trailing_ids=torch.from_numpy(trailing),
                trailing_lens=torch.tensor([len(text) for text in texts], dtype=torch.int32),
                block_table=torch.from_numpy(pages),
                seeds=seed_words([r.seed for r in requests]),
                warp_floats=floats,
                warp_ints=ints,
            ),
        )
        rows = AdmittedRows(*fields)
        self._state.start(slots, rows)
        with self._meter.on_device("prefill", self._device):
            x = embed_prompts(self._weights, admitted)
            self._state.hidden[slots] = self._prefill(x, lens, rows.block_table)
        self._meter.counts["prompt_tokens"] += sum(lens)

    def _prefill(self, x: Tensor, lens: list[int], block_table: Tensor) -> Tensor:
        """Hidden states [rows, H] of each row's last prompt token."""
        last = torch.empty(len(lens), x.shape[1], dtype=x.dtype, device=x.device)
        for chunk in _chunks(lens, self.settings.prefill_tokens):
            sizes = [part.stop - part.start for part in chunk.parts]
            rows = slice(chunk.first_row, chunk.first_row + len(sizes))
            ends = [0, *accumulate(sizes)]
            tokens = slice(chunk.first_token, chunk.first_token + ends[-1])
            table = block_table[rows]
            at, row_of, cu_seqlens, starts, last_of = stage(
                self._device,
                torch.cat([torch.arange(part.start, part.stop, dtype=torch.int32) for part in chunk.parts]),
                torch.repeat_interleave(torch.tensor(sizes)),
                torch.tensor(ends, dtype=torch.int32),
                torch.tensor([part.start for part in chunk.parts], dtype=torch.int32),
                torch.tensor(ends[1:]) - 1,
            )
            page = table[row_of, (at // self.settings.page_size).long()]
            hidden = self._loop.run_prefill(
                PrefillTokens(x[tokens].clone(), at, page * self.settings.page_size + at % self.settings.page_size),
                PrefillRows(
                    block_table=table,
                    cu_seqlens=cu_seqlens,
                    starts=starts,
                    max_len=max(sizes),
                ),
            )
            # A row's last chunk is the one that counts: it overwrites what earlier ones left.
            last[rows] = hidden[last_of]
        return last

    def _launch_window(self) -> _Window | None:
        """Queue some frames of every active row and the copy of their flags; wait for nothing."""
        rows = tuple(self.scheduler.active.values())
        if not rows:
            return None
        bucket = bucket_for(len(rows), self._buckets)
        slots = np.full(bucket, self._padding_slot, dtype=np.int32)
        slots[: len(rows)] = [row.slot for row in rows]
        static = self._bucket_slots[bucket]
        static.copy_(stage(self._device, torch.from_numpy(slots))[0])
        num_frames = self._frames_to_launch(bucket)
        with self._meter.on_device("frame_loop", self._device):
            for _ in range(num_frames):
                self._graphs.run(bucket, lambda: self._loop.run_frame(static))
        self._meter.counts["frames"] += num_frames
        self._meter.counts["row_frames"] += num_frames * len(rows)
        self._meter.counts["bucket_frames"] += num_frames * bucket
        flags = self._flags[self._num_windows % 2]
        self._num_windows += 1
        flags.start_copy(self._state)
        return _Window(rows, flags)

    def _frames_to_launch(self, bucket: int) -> int:
        """A frame of few rows is short, and launching it takes the host almost as long as computing it the device."""
        settings = self.settings
        if not (settings.long_windows and self._graphs.enabled) or self.scheduler.num_waiting:
            return settings.frames_per_visit
        stretch = settings.max_num_seqs // (2 * bucket)
        return settings.frames_per_visit * min(max(1, stretch), MAX_STRETCH)

    def _harvest(self, window: _Window) -> list[EngineRow]:
        with self._meter.on_host("wait for frames"):
            done, num_frames = window.flags.wait(self.settings.wait_timeout_s)
        self._harvested, self._num_frames = set(window.rows), num_frames
        ended = [row for row in window.rows if done[row.slot] in FINISH_REASONS and self._still_holds(row)]
        if not ended:
            return []
        now_s = time.monotonic()
        (slots,) = stage(self._device, torch.tensor([row.slot for row in ended]))
        lens = [int(num_frames[row.slot]) for row in ended]
        codes = self._state.codes[:, : max(lens)][slots]  # a copy: the slots may be taken again at once
        copies = [codes[i, :length].clone() for i, length in enumerate(lens)]
        self._state.done.index_fill_(0, slots, DONE_CANCELLED)
        for row, row_codes in zip(ended, copies, strict=True):  # last: where memory ran out above, all can be evicted
            metrics = {"queue_s": row.admitted_at_s - row.ready_at_s, "decode_s": now_s - row.admitted_at_s}
            row.end(row_codes, FINISH_REASONS[int(done[row.slot])], metrics)
            self.scheduler.release(row)
        return ended

    def _known_frames(self, row: EngineRow) -> int:
        """As of the last harvest; a row that was not yet in its window has none."""
        return int(self._num_frames[row.slot]) if row in self._harvested else 0

    def _still_holds(self, row: EngineRow) -> bool:
        return self.scheduler.active.get(row.slot) is row


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Frames that were launched together: whose, and where their flags arrive."""

    rows: tuple[EngineRow, ...]
    flags: Flags


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One prefill pass: parts[i] are the prompt positions of row first_row + i."""

    first_row: int
    first_token: int
    parts: tuple[range, ...]


def _chunks(lens: Sequence[int], budget: int) -> list[_Chunk]:
    """Cut prompts, one after another, into passes of at most `budget` tokens; only a pass's ends are cut rows."""
    chunks: list[_Chunk] = []
    parts: list[range] = []
    first_row = first_token = used = token = 0
    for row, length in enumerate(lens):
        start = 0
        while start < length:
            size = min(length - start, budget - used)
            if size == 0:
                chunks.append(_Chunk(first_row, first_token, tuple(parts)))
                parts, first_row, first_token, used = [], row, token, 0
                continue
            parts.append(range(start, start + size))
            start, used, token = start + size, used + size, token + size
    chunks.append(_Chunk(first_row, first_token, tuple(parts)))
    return chunks
