"""Flags: how rows ended comes out as it was when the copy began, and a running row that lost its numbers is seen."""

from __future__ import annotations

import torch

from tts_batch.engine.v2.flags import Flags
from tts_batch.engine.v2.request_state import DONE_EOS, DONE_LOST, RUNNING, RequestState, StateShape

CPU = torch.device("cpu")


def test_a_running_row_whose_state_is_not_finite_is_lost() -> None:
    state = RequestState(StateShape(4, 64, 3_072, 16, 4, 3, pad_text_id=5), torch.bfloat16, CPU)
    state.done.copy_(torch.tensor([RUNNING, RUNNING, DONE_EOS, RUNNING]))
    state.hidden[1, 63], state.hidden[2, 0], state.hidden[3, 5] = torch.nan, torch.nan, torch.inf
    state.num_frames.copy_(torch.arange(4))
    flags = Flags(4, CPU)
    flags.start_copy(state)
    done, num_frames = flags.wait(10.0)
    assert done.tolist() == [RUNNING, DONE_LOST, DONE_EOS, DONE_LOST]
    assert num_frames.tolist() == [0, 1, 2, 3]


def test_what_happens_after_the_copy_is_not_seen() -> None:
    state = RequestState(StateShape(2, 8, 3_072, 16, 4, 3, pad_text_id=5), torch.float32, CPU)
    flags = Flags(2, CPU)
    flags.start_copy(state)
    before = flags.wait(10.0)
    state.done.fill_(DONE_EOS)
    state.num_frames.fill_(9)
    after = flags.wait(10.0)
    for one, two in zip(before, after, strict=True):
        assert one.tolist() == two.tolist()
    flags.start_copy(state)
    assert flags.wait(10.0)[0].tolist() == [DONE_EOS] * 2
    assert before[1].tolist() == [0, 0]  # the caller's own, not the buffer that the next copy takes
