"""stage: what arrives is what was sent, whatever its dtype and shape, aligned, in its own place."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tts_batch.engine.staging import ALIGNMENT, stage

CPU = torch.device("cpu")


@given(
    st.lists(
        st.tuples(
            st.sampled_from([torch.int64, torch.int32, torch.int16, torch.float32, torch.bfloat16, torch.bool]),
            st.lists(st.integers(0, 5), min_size=1, max_size=3),
        ),
        max_size=6,
    )
)
def test_any_tensors(asked: list[tuple[torch.dtype, list[int]]]) -> None:
    hosts = [torch.arange(torch.Size(size).numel()).view(size).to(dtype) for dtype, size in asked]
    expected = [host.clone() for host in hosts]
    staged = stage(CPU, *hosts)
    for host in hosts:
        host.zero_()
    assert len(staged) == len(expected)
    for got, sent in zip(staged, expected, strict=True):
        assert got.dtype == sent.dtype
        assert torch.equal(got, sent)
        assert got.is_contiguous()
        assert got.numel() == 0 or got.data_ptr() % ALIGNMENT == 0


def test_a_view_of_anything() -> None:
    host = torch.arange(24).view(4, 6)
    (columns,) = stage(CPU, host[:, 1:3].T)
    assert columns.tolist() == host[:, 1:3].T.tolist()


def test_what_arrived_may_be_written_without_touching_its_neighbours() -> None:
    first, second = stage(CPU, torch.zeros(3, dtype=torch.int16), torch.ones(3))
    first.fill_(7)
    assert second.tolist() == [1.0] * 3
