"""RequestState: starting a slot leaves nothing of the request that had it before, and touches no other."""

from __future__ import annotations

import torch

from tts_batch.engine.request import SamplingParams
from tts_batch.engine.v2.request_state import RUNNING, AdmittedRows, RequestState, StateShape, warp_rows

FIRST_WRITTEN_THEN_READ = {"hidden", "codes"}  # by the prefill, and frame by frame up to num_frames


def tensors(state: RequestState) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(state).items() if isinstance(value, torch.Tensor)}


def filled(seed: int) -> RequestState:
    """A state that is full of an earlier life."""
    state = RequestState(StateShape(5, 8, 3072, 6, 4, 3, pad_text_id=9), torch.float32, "cpu")
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors(state).values():
        tensor.copy_(torch.randint(0, 7, tensor.shape, generator=generator))
    return state


def start(state: RequestState, slots: list[int]) -> None:
    n = len(slots)
    floats, ints = warp_rows([SamplingParams()] * n)
    given = {
        "prompt_lens": torch.arange(n, dtype=torch.int32) + 20,
        "max_frames": torch.full((n,), 6, dtype=torch.int32),
        "trailing_ids": torch.full((n, 2), 33, dtype=torch.int32),
        "trailing_lens": torch.full((n,), 2, dtype=torch.int32),
        "block_table": torch.full((n, 2), 2, dtype=torch.int32),
        "seeds": torch.full((n, 2), 77, dtype=torch.int32),
        "warp_floats": floats,
        "warp_ints": ints,
    }
    state.start(torch.tensor(slots), AdmittedRows(**given))


def visible(state: RequestState, slot: int) -> dict[str, list]:
    """What a frame can read of a slot: what lies behind a length is not."""
    seen = {name: tensor[slot] for name, tensor in tensors(state).items() if name not in FIRST_WRITTEN_THEN_READ}
    seen["trailing_ids"] = seen["trailing_ids"][: int(state.trailing_lens[slot])]
    seen["block_table"] = seen["block_table"][:2]
    return {name: tensor.tolist() for name, tensor in seen.items()}


def test_a_started_slot_is_the_same_whoever_had_it() -> None:
    one, other = filled(1), filled(2)
    assert visible(one, 3) != visible(other, 3)
    for state in (one, other):
        start(state, [3, 0])
    for slot in (3, 0):
        assert visible(one, slot) == visible(other, slot)
        assert one.done[slot] == RUNNING


def test_other_slots_keep_everything() -> None:
    state, untouched = filled(1), filled(1)
    start(state, [3, 0])
    for name, tensor in tensors(state).items():
        assert torch.equal(tensor[[1, 2, 4]], tensors(untouched)[name][[1, 2, 4]]), name
