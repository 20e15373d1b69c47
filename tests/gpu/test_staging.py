"""stage and Flags on a CUDA device: what arrives is what was sent, while the host goes on; lost numbers are seen."""

from __future__ import annotations

import torch

from tts_batch.engine.staging import ALIGNMENT, stage
from tts_batch.engine.v2.flags import Flags
from tts_batch.engine.v2.request_state import DONE_EOS, DONE_LOST, RUNNING, RequestState, StateShape

CUDA = torch.device("cuda")


def test_what_was_sent_arrives_though_the_host_goes_on() -> None:
    sent = [
        [torch.arange(1_001) + i, torch.full((3, 7), i, dtype=torch.int32), torch.tensor([i % 2 == 0])]
        for i in range(100)
    ]
    expected = [[host.clone() for host in hosts] for hosts in sent]
    arrived = [stage(CUDA, *hosts) for hosts in sent]  # pinned memory is taken again and again meanwhile
    for staged, hosts in zip(arrived, expected, strict=True):
        for got, host in zip(staged, hosts, strict=True):
            assert torch.equal(got.cpu(), host)
            assert got.data_ptr() % ALIGNMENT == 0


def test_a_running_row_whose_state_is_not_finite_is_lost() -> None:
    state = RequestState(StateShape(4, 64, 3_072, 16, 4, 3, pad_text_id=5), torch.bfloat16, CUDA)
    state.done.copy_(torch.tensor([RUNNING, RUNNING, DONE_EOS, RUNNING]))
    state.hidden[1, 63], state.hidden[2, 0], state.hidden[3, 5] = torch.nan, torch.nan, torch.inf
    state.num_frames.copy_(torch.arange(4))
    flags = Flags(4, CUDA)
    flags.start_copy(state)
    done, num_frames = flags.wait(10.0)
    assert done.tolist() == [RUNNING, DONE_LOST, DONE_EOS, DONE_LOST]
    assert num_frames.tolist() == [0, 1, 2, 3]
