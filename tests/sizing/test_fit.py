"""A clock that is known is found again in what it recorded."""

from pathlib import Path

import numpy as np
import pytest
from hybrid_blocks.replay import EngineConfig, StepTime
from hybrid_blocks.sizing.errors import SizingError
from hybrid_blocks.sizing.fit import errors_of, fit
from hybrid_blocks.sizing.least_squares import solve
from hybrid_blocks.sizing.served import read_served
from recordings import poisson, record

CLOCK = StepTime(
    fixed=8e-3,
    per_prefill_token=40e-6,
    per_sequence=0.1e-3,
    per_context_token=50e-9,
    per_prefill_pair=0.0,
)
CONFIG = EngineConfig(step_time=CLOCK, max_num_batched_tokens=2048)


def test_a_clock_is_found_again(tmp_path: Path) -> None:
    served = read_served(record(poisson(300, 8.0), tmp_path / "t.jsonl", CONFIG, 0.25))
    found = fit(served, CONFIG)
    assert found.requests == 300
    assert found.step_time.fixed == pytest.approx(CLOCK.fixed, rel=0.1)
    assert found.step_time.per_prefill_token == pytest.approx(CLOCK.per_prefill_token, rel=0.15)
    # A request that arrives just before or after the end of a step waits for one more or less.
    for error in found.errors:
        assert error.p50 < 0.1
        assert error.p95 < 0.5
        assert all(abs(away) < 0.1 for away in error.of_percentiles)


def test_a_fit_holds_for_other_traffic_of_the_same_engine(tmp_path: Path) -> None:
    quiet = read_served(record(poisson(200, 4.0), tmp_path / "quiet.jsonl", CONFIG))
    busy = read_served(record(poisson(200, 14.0, seed=1), tmp_path / "busy.jsonl", CONFIG))
    step_time = fit(quiet, CONFIG).step_time
    assert all(error.p50 < 0.15 for error in errors_of(busy, step_time, CONFIG))


def test_the_true_clock_has_no_error(tmp_path: Path) -> None:
    served = read_served(record(poisson(60, 8.0), tmp_path / "t.jsonl", CONFIG))
    assert all(error.p95 < 1e-6 for error in errors_of(served, CLOCK, CONFIG))


def test_least_squares_never_go_below_nothing() -> None:
    draw = np.random.default_rng(1)
    counts = draw.random((50, 3)) + 0.1
    exact = solve(counts, counts @ np.array([2.0, 0.0, 1.0]))
    assert exact == pytest.approx([2.0, 0.0, 1.0], abs=1e-6)
    held = solve(counts, counts @ np.array([2.0, -0.3, 1.0]))
    assert (held >= 0).all()
    assert held[1] == 0


@pytest.mark.parametrize("scatter", [0.2, 0.5, 0.8])
def test_times_that_scatter_make_the_clock_no_faster(scatter: float) -> None:
    draw = np.random.default_rng(2)
    counts = draw.random((4000, 3)) + 0.1
    true = np.array([2.0, 0.5, 1.0])
    seconds = counts @ true * draw.lognormal(0.0, scatter, len(counts))
    found = solve(counts, seconds)
    assert np.median(counts @ found / seconds) == pytest.approx(1, abs=1e-6)
    assert (counts @ found).sum() == pytest.approx((counts @ true).sum(), rel=0.05)


def test_a_file_without_times_says_how_to_record_them(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    line = (
        '{"hybrid_blocks_request":0,"arrival":0.5,"block_tokens":16,"prompt_tokens":20,'
        '"output_tokens":3,"blocks":""}'
    )
    path.write_text(line + "\n")
    with pytest.raises(SizingError, match=r"0 of 1 requests tell .* a fit needs 20; record again"):
        read_served(path)
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-01 10:00:00.0,1000,24\n")
    with pytest.raises(SizingError, match="format azure, which tells no times"):
        read_served(path)


def test_a_file_of_few_requests_is_to_be_recorded_for_longer(tmp_path: Path) -> None:
    with pytest.raises(SizingError, match=r"5 of 5 requests .* record again for longer"):
        read_served(record(poisson(5, 8.0), tmp_path / "t.jsonl", CONFIG))
