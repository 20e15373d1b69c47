"""Seeds and frame budgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tts_batch.plan.budget import MIN_BUDGET, plan_frames
from tts_batch.plan.seeds import derive_seed

SEEDS = st.integers(0, 2**63 - 1)


@given(SEEDS, st.text(max_size=20), st.integers(0, 5), st.integers(0, 5), st.none() | SEEDS)
def test_seeds_are_in_range_and_repeatable(
    run_seed: int, row_id: str, take: int, attempt: int, explicit: int | None
) -> None:
    seed = derive_seed(run_seed, row_id, take=take, attempt=attempt, explicit=explicit)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(run_seed, row_id, take=take, attempt=attempt, explicit=explicit)


def test_seeds_tell_apart_runs_rows_takes_and_attempts() -> None:
    seeds = {
        derive_seed(run_seed, row_id, take=take, attempt=attempt)
        for run_seed in (0, 1)
        for row_id in ("a", "b", "a\x1f0")
        for take in (0, 1)
        for attempt in (0, 1)
    }
    assert len(seeds) == 24


def test_an_explicit_seed_is_the_first_attempts() -> None:
    assert derive_seed(0, "a", explicit=42) == 42
    assert derive_seed(0, "a", explicit=42, attempt=1) != 42
    assert derive_seed(0, "a", explicit=42, attempt=1) == derive_seed(9, "a", explicit=42, attempt=1)


def test_the_first_piece_has_the_row_s_seed_and_each_other_its_own() -> None:
    assert derive_seed(0, "a", piece=0) == derive_seed(0, "a")
    seeds = {derive_seed(0, "a", attempt=attempt, piece=piece) for attempt in (0, 1) for piece in range(5)}
    assert len(seeds) == 10
    assert derive_seed(0, "a", explicit=42, piece=0) == 42
    assert derive_seed(0, "a", explicit=42, piece=1) == derive_seed(9, "a", explicit=42, piece=1) != 42


def test_the_seeds_of_a_release_never_change() -> None:
    assert derive_seed(0, "row-1") == 7785222479466500658
    assert derive_seed(7, "row-1", take=1, attempt=2) == 8610671073026279538


def test_b04_the_budget_leaves_room() -> None:
    expected, budget = plan_frames(17, "chinese", 8191)  # 24 characters
    assert budget >= 2.5 * expected
    assert plan_frames(1, "english", 8191)[1] == MIN_BUDGET


@given(st.integers(1, 3000), st.sampled_from([None, "english", "chinese", "japanese", "russian"]))
def test_budgets_are_at_least_twelve_frames_a_token(num_tokens: int, language: str | None) -> None:
    expected, budget = plan_frames(num_tokens, language, 10**6)
    assert budget >= max(MIN_BUDGET, 12 * num_tokens)
    assert expected <= budget / 2
    assert plan_frames(num_tokens, language, 500)[1] <= 500
