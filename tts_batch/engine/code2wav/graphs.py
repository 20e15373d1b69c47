"""The codec's decoder in CUDA graphs for chunks, one for each number of pieces and of frames: launches cost nothing.

Without them the host launches some two hundred kernels for a few frames, while the talker's next ones wait for it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from tts_batch.engine.code2wav.decoder import Decode
from tts_batch.engine.cuda_graphs import CudaGraphs
from tts_batch.engine.request import NUM_CODEBOOKS, SAMPLES_PER_FRAME

logger = logging.getLogger(__name__)

PIECES = (1, 2, 4, 8, 16, 32, 64)
FRAMES = (2, 3, 5, 9, 17, 26, 40, 64, 97)  # chunks with a frame of context, or with all of it
MAX_FRAMES = 1_300  # of a batch, padding included: an H200 decodes 800 frames as fast, each, as it does 5,000
REPLAY_COST_FRAMES = 60  # what a batch costs beyond its frames, in frames; measured on an H200


def cheapest_size(sizes: Iterable[int], frames: Sequence[int], padded_to: int, launch_frames: int) -> int:
    """How many pieces, of these frames and each padded, to decode together; 1 where there is no size to choose.

    As many as cost least for each wanted frame. Padding costs its frames, and a launch `launch_frames` frames.
    """
    wanted = [0, *accumulate(frames)]
    return min(sizes, key=lambda n: (launch_frames + n * padded_to) / wanted[n], default=1)


class Code2WavGraphs:
    """Decodes batches by replaying. Without CUDA graphs it computes the same, on the same static tensors.

    A batch that no graph holds is decoded as if there were none, and counted as a miss.
    """

    def __init__(
        self,
        decode: Decode,
        graphs: CudaGraphs,
        device: torch.device | str,
        longest: int = FRAMES[-1],
        max_frames: int = MAX_FRAMES,
        max_pieces: int = PIECES[-1],
    ) -> None:
        """
        Args:
            longest: most frames wanted of a piece. Its codes, context included, may be FRAMES[-1].
            max_frames: of a batch, padding included; one piece may have more.
            max_pieces: of a batch.
        """
        self._decode = decode
        self._graphs = graphs
        self._pieces = {
            frames: [n for n in PIECES if n == 1 or (n <= max_pieces and n * frames <= max_frames)]
            for frames in FRAMES[: bisect_left(FRAMES, longest) + 1]
        }
        rows = max(self._pieces[FRAMES[0]])
        samples = SAMPLES_PER_FRAME * max(frames * pieces[-1] for frames, pieces in self._pieces.items())
        self._codes = torch.zeros(rows, NUM_CODEBOOKS, FRAMES[-1], dtype=torch.int64, device=device)
        self._first = torch.zeros(rows, dtype=torch.int64, device=device)
        self._ends = torch.zeros(rows, dtype=torch.int64, device=device)
        self._audio = torch.zeros(samples, dtype=torch.float32, device=device)

    @property
    def buckets(self) -> list[tuple[int, int]]:
        """Every (pieces, frames) there is to be a graph for, the largest first."""
        every = [(pieces, frames) for frames in self._pieces for pieces in self._pieces[frames]]
        return sorted(every, key=lambda bucket: -bucket[0] * bucket[1])

    def capture(self) -> None:
        """Capture all graphs. A bucket that cannot be captured is counted and logged; its batches run eagerly."""
        for bucket in self.buckets if self._graphs.enabled else ():
            try:
                self._graphs.capture(bucket, partial(self._decode_static, *bucket))
            except RuntimeError as error:  # out of memory, above all
                self._graphs.counts[f"failed[{bucket}]"] += 1
                logger.warning("Code2Wav: no CUDA graph for %s: %s: %s", bucket, type(error).__name__, error)

    def batch_size(self, frames: Sequence[int]) -> int:
        """The number of waiting pieces to decode together, given the frames wanted of each in descending order.

        Chooses the cheapest of the captured sizes.
        """
        bucket = self._bucket(frames[0])
        sizes = [n for n in self._pieces.get(bucket, ()) if n <= len(frames) and (n, bucket) in self._graphs]
        return cheapest_size(sizes, frames, bucket, REPLAY_COST_FRAMES)

    def decode(self, codes: Tensor, first: Tensor, num_frames: int, ends: Tensor) -> Tensor:
        """Decode as the decoder does; each row may have extra samples at its end.

        The audio is overwritten by the next call: copy it on the stream that called.
        """
        pieces, _, length = codes.shape
        bucket = pieces, self._bucket(num_frames if length <= FRAMES[-1] else length)
        if pieces not in self._pieces.get(bucket[1], ()) or bucket not in self._graphs:
            self._graphs.count_miss(bucket)
            return self._decode(codes, first, num_frames, ends)
        # What earlier batches left behind a row's end is as good as any other padding.
        self._codes[:pieces, :, :length] = codes
        self._first[:pieces] = first
        self._ends[:pieces] = ends
        self._graphs.run(bucket, partial(self._decode_static, *bucket))
        return self._audio_of(*bucket)

    def _bucket(self, frames: int) -> int:
        """The smallest bucket of at least this many frames; the number itself where there is none."""
        return next((bucket for bucket in self._pieces if bucket >= frames), frames)

    def _decode_static(self, pieces: int, frames: int) -> None:
        codes, first, ends = (static[:pieces] for static in (self._codes, self._first, self._ends))
        self._audio_of(pieces, frames).copy_(self._decode(codes, first, frames, ends))

    def _audio_of(self, pieces: int, frames: int) -> Tensor:
        return self._audio[: pieces * frames * SAMPLES_PER_FRAME].view(pieces, -1)
