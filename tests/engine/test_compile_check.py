"""Every kernel of the released shapes compiles for every card, and fits its shared memory; no GPU is needed."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="kernels are compiled on Linux only")
compile_check = pytest.importorskip("benchmarks.kernels.compile_check")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("card", compile_check.SHARED_BYTES)
def test_no_kernel_is_left_to_torch_and_none_is_over_the_limit(card: int) -> None:
    with compile_check.compiling_for(card) as checked:
        compile_check.launch_talker(compile_check.released("1.7b"), torch.bfloat16)
        compile_check.launch_codec(compile_check.released("1.7b"), torch.bfloat16)
    assert checked.left_to_torch == []
    assert max(checked.launched.values()) <= compile_check.SHARED_BYTES[card]
    names = {name for name, _ in checked.launched}
    assert {"_conv_kernel", "_window_kernel", "_decode_kernel", "_prefill_kernel", "_predictor_kernel"} <= names
    assert ("_product_kernel" in names) == (card == 90)  # of small batches: only where it was measured
    if card == 90:
        assert checked.over == []  # tuned there: nothing is tried in vain


def test_a_kernel_that_fits_nowhere_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compile_check.SHARED_BYTES, 86, 20_000)
    with compile_check.compiling_for(86) as checked:
        from tts_batch.engine.kernels.causal_conv import Conv, causal_conv

        x = torch.zeros(1, 64, 96, dtype=torch.bfloat16, device="meta")
        weight = torch.zeros(7 * 96, 96, dtype=torch.bfloat16, device="meta")
        out, _ = causal_conv(x, Conv(weight, torch.zeros(96, device="meta"), taps=7))
    assert out is not None and out.shape == x.shape
    assert len(checked.left_to_torch) == 1 and checked.over != [] and checked.launched == {}
