import numpy as np
import pytest
from hybrid_blocks.trace import Trace, generate_trace
from hybrid_blocks.trace.generate import Shape


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate_trace(seed=1)


def test_equal_seeds_make_equal_workloads_and_others_do_not(trace: Trace) -> None:
    again, other = generate_trace(seed=1), generate_trace(seed=2)
    for column in ("arrival", "follows", "prompt_tokens", "span_start", "span_first"):
        np.testing.assert_array_equal(getattr(trace, column), getattr(again, column))
    assert not np.array_equal(trace.prompt_tokens, other.prompt_tokens)


def test_there_are_thousands_of_requests_of_widely_spread_lengths(trace: Trace) -> None:
    assert len(trace) == Shape().num_requests >= 2000
    low, high = np.percentile(trace.prompt_tokens, (5, 95))
    assert high > 8 * low
    assert trace.prompt_tokens.max() <= Shape().max_tokens


def test_a_turn_resends_everything_before_it(trace: Trace) -> None:
    followers = np.flatnonzero(trace.follows >= 0)
    assert len(followers) > len(trace) // 2
    for request in followers[:200]:
        before = trace.token_ids(trace.follows[request])
        np.testing.assert_array_equal(trace.token_ids(request)[: len(before)], before)


def test_some_turns_branch(trace: Trace) -> None:
    _, continuations = np.unique(trace.follows[trace.follows >= 0], return_counts=True)
    assert (continuations == 2).sum() > 50
    assert continuations.max() == 2


def test_conversations_share_system_prompts_by_popularity(trace: Trace) -> None:
    openings = np.flatnonzero(trace.follows < 0)
    system = trace.span_first[trace.span_start[openings]]
    _, uses = np.unique(system, return_counts=True)
    assert len(uses) == Shape().num_system_prompts
    assert uses.max() > 4 * uses.min()


def test_arrivals_of_conversations_rise(trace: Trace) -> None:
    openings = trace.arrival[trace.follows < 0]
    assert (np.diff(openings) >= 0).all()
    assert (trace.arrival >= 0).all()
