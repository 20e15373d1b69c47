"""Cards with less memory than this one, which a fraction of it stands for: each opens by itself, or says why not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.asking import ask, voice
from tts_batch.bench.engines import random_model
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig

GIB = 2**30
CONFIG = EngineConfig(model="", device="cuda", runner="v2", max_frames=2_048)


@pytest.fixture
def card() -> Iterator[object]:
    """Sets how many GiB of the device this process may use."""
    total = torch.cuda.get_device_properties(0).total_memory

    def use(gib: float) -> None:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, gib * GIB / total))

    yield use
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("gib", "shape"), [(7, "0.6b"), (8, "1.7b"), (11, "1.7b"), (15, "0.6b"), (23, "1.7b")])
def test_an_engine_opens_by_itself_and_ends_every_row(card, gib: float, shape: str) -> None:
    card(gib)
    engine = NativeEngine.of_model(random_model(shape, CONFIG), CONFIG, owns_model=True)
    requests = [
        ask(str(i), task="base", seed=i, max_frames=40 + i, reference=voice(f"v{i}", 3.0), x_vector_only=i % 2 == 0)
        for i in range(48)
    ]
    results = list(generate(engine, requests))
    print(gib, shape, {name: engine.info[name] for name in ("max_num_seqs", "num_pages", "code2wav_frames")},
          torch.cuda.max_memory_reserved() / GIB)  # fmt: skip
    engine.close()
    assert len(results) == 48
    assert not [r.error for r in results if r.reason == "out_of_memory"]


def test_a_card_that_is_too_small_is_refused_with_what_helps(card) -> None:
    card(4.4)
    with pytest.raises(EngineConfigError, match=r"GiB.*0\.6B.*--profile.*--max-num-seqs"):
        NativeEngine.of_model(random_model("1.7b", CONFIG), CONFIG, owns_model=True)
