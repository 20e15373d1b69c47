"""The sampling pipelines equal the reference's processors, and draw with the reference's probabilities."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.golden.cases import SAMPLED_CASES
from tts_batch.engine.kernels.sampling import sample_code, sample_code0
from tts_batch.engine.noise import frame_keys, seed_words
from tts_batch.engine.request import SamplingParams
from tts_batch.engine.sampling import SamplingTable, predictor_scores, suppressed_ids, talker_scores
from tts_batch.engine.v2.request_state import RUNNING, RequestState, StateShape, warp_rows

VOCAB, EOS = 3_072, 2_150
GOLDEN = Path(__file__).parents[1] / "golden"


def reference_talker_scores(logits: torch.Tensor, history: list[int], params: SamplingParams) -> torch.Tensor:
    """One row through transformers' own processors, in the order of its generate()."""
    ids = torch.tensor([history], dtype=torch.int64)
    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
            MinNewTokensLengthLogitsProcessor(0, params.min_new_tokens, [EOS]),
            SuppressTokensLogitsProcessor([i for i in range(VOCAB - 1_024, VOCAB) if i != EOS]),
        ]
    )
    if params.do_sample:
        processors += reference_warpers(params.temperature, params.top_k, params.top_p)
    return processors(ids, logits[None].float())[0]


def reference_warpers(temperature: float, top_k: int, top_p: float) -> LogitsProcessorList:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers


def run_talker(logits: torch.Tensor, histories: list[list[int]], params: list[SamplingParams]) -> torch.Tensor:
    seen = torch.zeros(len(params), VOCAB, dtype=torch.bool)
    for row, history in enumerate(histories):
        seen[row, history] = True
    generated = torch.tensor([len(history) for history in histories])
    table = SamplingTable.build(params, "cpu")
    return talker_scores(logits, seen, generated, suppressed_ids(VOCAB, EOS, "cpu"), EOS, table)


PARAMS = st.builds(
    SamplingParams,
    do_sample=st.booleans(),
    temperature=st.floats(0.1, 2.0),
    top_k=st.sampled_from([0, 1, 2, 20, 50, 5_000]),
    top_p=st.sampled_from([1.0, 0.95, 0.8, 0.3, 1e-6]),
    repetition_penalty=st.sampled_from([1.0, 1.05, 1.2, 0.9]),
    min_new_tokens=st.integers(0, 3),
)
ROWS = st.lists(st.tuples(PARAMS, st.lists(st.integers(0, 2_047), max_size=5)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 2**31), st.sampled_from([None, 0.5]))
def test_talker_pipeline_equals_the_reference(rows: list, seed: int, grid: float | None) -> None:
    logits = 3 * torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed))
    if grid:  # many ties, also at the top-k threshold
        logits = (logits / grid).round() * grid
        rows = [(params, history) for params, history in rows if params.top_p == 1] or rows[:0]
    if not rows:
        return
    params, histories = [p for p, _ in rows], [h for _, h in rows]
    scores = run_talker(logits[: len(rows)], histories, params)
    for row, score in enumerate(scores):
        expected = reference_talker_scores(logits[row], histories[row], params[row])
        assert torch.equal(score, expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0, 1, 10, 50]), st.sampled_from([1.0, 0.9, 0.5]), st.floats(0.2, 2))
def test_predictor_pipeline_equals_the_reference(seed: int, top_k: int, top_p: float, temperature: float) -> None:
    logits = torch.randn(2, 2_048, generator=torch.Generator().manual_seed(seed))
    params = SamplingParams(subtalker_temperature=temperature, subtalker_top_k=top_k, subtalker_top_p=top_p)
    table = SamplingTable.build([SamplingParams(subtalker_dosample=False), params], "cpu")
    scores = predictor_scores(logits, table)
    assert torch.equal(scores[0], logits[0])
    assert torch.equal(scores[1:], reference_warpers(temperature, top_k, top_p)(None, logits[1:]))


@pytest.mark.parametrize("name", SAMPLED_CASES)
def test_scores_of_the_official_package(name: str) -> None:
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        golden = {key: torch.from_numpy(arrays[key]) for key in arrays if key != "meta"}
    fields = SamplingParams.__dataclass_fields__
    params = SamplingParams(**{key: value for key, value in SAMPLED_CASES[name].items() if key in fields})
    num_steps, num_rows, _ = golden["talker_scores"].shape
    for step in range(num_steps):
        histories = [golden["talker_sequences"][row, :step].tolist() for row in range(num_rows)]
        if any(EOS in history for history in histories):
            break
        scores = run_talker(golden["talker_logits"][step], histories, [params] * num_rows)
        torch.testing.assert_close(scores, golden["talker_scores"][step], rtol=0, atol=0)
    if "predictor_scores_first" in golden:
        table = SamplingTable.build([params] * num_rows, "cpu")
        for logits, scores in zip(
            golden["predictor_logits_first"][0], golden["predictor_scores_first"][0], strict=True
        ):
            torch.testing.assert_close(predictor_scores(logits, table), scores, rtol=0, atol=0)


def test_ties_at_the_top_k_threshold_are_kept() -> None:
    logits = torch.full((1, VOCAB), -1.0)
    logits[0, [3, 9, 27, 81]] = torch.tensor([2.0, 1.0, 1.0, 1.0])
    scores = run_talker(logits, [[]], [SamplingParams(top_k=2, temperature=1.0)])
    assert torch.isfinite(scores[0]).nonzero().flatten().tolist() == [3, 9, 27, 81]


def test_greedy_takes_the_first_of_equal_scores_and_ignores_temperature() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [40, 41]] = torch.tensor([1.0, 1.0 + 2**-23])
    greedy = SamplingParams(do_sample=False, temperature=1e30)
    table = SamplingTable.build([greedy], "cpu")
    keys = frame_keys(seed_words([5]), torch.tensor([0]))
    assert table.talker.choose(run_talker(logits, [[]], [greedy]), keys[:, 0]).tolist() == [41]
    assert table.talker.choose(run_talker(torch.zeros(1, VOCAB), [[]], [greedy]), keys[:, 0]).tolist() == [0]


def test_selected_rows_keep_their_parameters() -> None:
    params = [SamplingParams(top_k=k, repetition_penalty=1 + k / 10, min_new_tokens=k) for k in (1, 5, 9)]
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    seen = torch.rand(3, VOCAB, generator=torch.Generator().manual_seed(2)) < 0.1
    generated, suppressed = torch.tensor([4, 4, 4]), suppressed_ids(VOCAB, EOS, "cpu")
    table, kept = SamplingTable.build(params, "cpu"), torch.tensor([2, 0])
    whole = talker_scores(logits, seen, generated, suppressed, EOS, table)
    part = talker_scores(logits[kept], seen[kept], generated[kept], suppressed, EOS, table.select(kept))
    assert torch.equal(part, whole[kept])


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(top_k=20, top_p=0.8, temperature=0.7, repetition_penalty=1.2)],
    ids=["defaults", "narrow"],
)
def test_draws_have_the_reference_probabilities(params: SamplingParams) -> None:
    draws, history = 6_000, [3, 5, 8]
    logits = 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(11))
    logits[[EOS, 2_149, 3]] = logits.max() + torch.tensor([0.0, 1.0, 0.5])  # allowed, suppressed, penalised
    probabilities = reference_talker_scores(logits, history, params).double().softmax(-1)

    table = SamplingTable.build([params], "cpu")
    scores = run_talker(logits[None], [history], [params])
    keys = frame_keys(seed_words(range(draws)), torch.full((draws,), len(history)))
    assert_drawn_from(table.talker.choose(scores, keys[:, 0]), probabilities)


@pytest.mark.parametrize("codebook", [0, 5])
def test_the_frame_loop_draws_with_the_reference_probabilities(codebook: int) -> None:
    """Runner v2's sampler, on slots in any order: every row has a seed and a frame of its own."""
    rows, params = 3_000, SamplingParams(top_p=0.9, subtalker_top_p=0.9)
    state = RequestState(StateShape(rows, 8, VOCAB, 4, 1, 1, pad_text_id=0), torch.float32, "cpu")
    state.done.fill_(RUNNING)
    state.max_frames.fill_(9)
    state.num_frames.copy_(2 + torch.arange(rows) % 3)
    state.seeds.copy_(seed_words(range(rows)))
    for field, values in zip((state.warp_floats, state.warp_ints), warp_rows([params]), strict=True):
        field.copy_(values)
    width = VOCAB if codebook == 0 else 2_048
    logits = 3 * torch.randn(width, generator=torch.Generator().manual_seed(codebook))
    slots = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    codes = torch.zeros(rows, 16, dtype=torch.int32)
    if codebook == 0:
        logits[EOS] = -100.0  # an EOS would end the row
        probabilities = reference_talker_scores(logits, [], params)
        sample_code0(state, slots, logits.expand(rows, -1), EOS, codes, torch.zeros(VOCAB, 1), torch.zeros(rows, 1))
    else:
        probabilities = reference_warpers(0.9, 50, 0.9)(None, logits[None])[0]
        sample_code(state, slots, logits.expand(rows, -1), codebook, codes, None, None)
    assert_drawn_from(codes[:, codebook], probabilities.double().softmax(-1))


def assert_drawn_from(codes: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Chi-square, within five standard deviations."""
    counts = torch.bincount(codes.long(), minlength=len(probabilities)).double()
    expected = len(codes) * probabilities
    assert counts[probabilities == 0].sum() == 0
    often = expected >= 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    degrees = int(often.sum()) - 1
    assert degrees > 1
    assert abs(statistic - degrees) < 5 * (2 * degrees) ** 0.5
