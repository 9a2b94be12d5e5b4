"""Which of several connectors a request loads from: the choice equals a naive model's."""

from itertools import count
from typing import Any

import pytest
from hybrid_blocks.connector import Connector
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.multi.child import Child, Offer, soonest
from hybrid_blocks.offload.multi.options import Options
from hybrid_blocks.offload.tiers.rates import RETRY_AFTER
from hypothesis import given
from hypothesis import strategies as st

SECONDS = st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0, 40.0])
OFFERS = st.lists(
    st.tuples(st.integers(0, 100), SECONDS, st.sampled_from([0.0, 0.5, 0.75, 1.0])), max_size=5
)


def simulated(offer: Offer | None, num_missing: int, per_token: float) -> float:
    """When a request has all its tokens, in the mean over a load that fails or does not."""
    if offer is None:
        return num_missing * per_token
    done = offer.seconds + (num_missing - offer.num_tokens) * per_token
    failed = offer.seconds + num_missing * per_token
    return offer.share * done + (1 - offer.share) * failed


@given(OFFERS, st.integers(0, 20), st.sampled_from([0.001, 0.03, 1.0]))
def test_no_other_offer_lets_the_request_resume_sooner(
    drawn: list[tuple[int, float, float]], more: int, per_token: float
) -> None:
    offers = [Offer(place, *it) for place, it in enumerate(drawn)]
    num_missing = max([0, *(it.num_tokens for it in offers)]) + more
    chosen = soonest(offers, num_missing, per_token)
    real = [it for it in offers if it.num_tokens > 0]
    times = [simulated(it, num_missing, per_token) for it in (None, *real)]
    assert simulated(chosen, num_missing, per_token) == pytest.approx(min(times))
    assert chosen is None or chosen in real
    if min(times[1:], default=float("inf")) < times[0] - 1e-6:
        assert chosen is not None


@given(OFFERS)
def test_without_a_known_rate_of_computing_the_most_tokens_win_and_then_the_first(
    drawn: list[tuple[int, float, float]],
) -> None:
    offers = [Offer(place, tokens, seconds) for place, (tokens, seconds, _) in enumerate(drawn)]
    chosen = soonest(offers, 100, None)
    most = max((it.num_tokens for it in offers), default=0)
    if not most:
        assert chosen is None
        return
    best = min((it.seconds, it.child) for it in offers if it.num_tokens == most)
    assert chosen == next(it for it in offers if it.child == best[1])


def test_a_child_that_fails_is_trusted_less_and_tried_again_after_a_while() -> None:
    child = Child(object(), 0)
    clock = count(100.0)
    shares = []
    for _ in range(4):
        now = next(clock)
        child.begin(64, 1_000, now, is_async=True).end(now, is_whole=False)
        shares.append(child.offer(64, 1_000, now).share)
    assert shares == [0.5, 0.25, 0.125, 0.0625]
    assert child.counts["failed_loads"] == 4
    assert child.offer(64, 1_000, 104.0 + RETRY_AFTER).share == 1.0
    child.begin(64, 1_000, 500.0, is_async=True).end(501.0, is_whole=True)
    assert child.share > 0.5


TWO: list[dict[str, Any]] = [{"kv_connector": "A"}, {"kv_connector": "B"}]


def test_options_are_read() -> None:
    assert Options.of({"connectors": TWO}) == Options((1.0, 1.0), 0.1, 10.0)
    read = Options.of({"connectors": TWO, "weights": [2, 0], "wait": 0, "patience": 3})
    assert read == Options((2.0, 0.0), 0.0, 3.0)


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({}, 'needs "connectors"'),
        ({"connectors": []}, 'needs "connectors"'),
        ({"connectors": TWO, "weights": [1]}, "no list of 2 numbers"),
        ({"connectors": TWO, "weights": [1, -1]}, "a weight is a number from 0 on, not -1"),
        ({"connectors": TWO, "weights": [1, True]}, "a weight is a number from 0 on, not True"),
        ({"connectors": TWO, "wait": "1s"}, "wait is a number from 0 on, not '1s'"),
        ({"connectors": TWO, "patience": float("inf")}, "patience is a number"),
        ({"connectors": TWO, "weight": [1, 1]}, "no option weight; it has connectors, weights"),
    ],
)
def test_a_wrong_option_is_named(extra: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint.replace("[", r"\[")):
        Options.of(extra)


OURS = {
    "kv_connector": "OffloadingConnector",
    "kv_connector_extra_config": {"spec_name": "HybridOffloadingSpec"},
}
SEVERAL = "hybrid_blocks.offload.multi"
PULLS = {
    "kv_connector": "HybridNixlConnector",
    "kv_connector_module_path": "hybrid_blocks.offload.nixl",
}

BOTH_WAYS = {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}


def test_level_natural_serves_pulls_by_the_connector_that_knows_slabs() -> None:
    assert Connector.of(PULLS).refused({}) is None
    assert Connector.of({"kv_connector": "HybridNixlConnector"}).refused({}) is not None


@pytest.mark.parametrize(
    ("module", "children", "reason"),
    [
        (SEVERAL, [OURS], None),
        (SEVERAL, [OURS, OURS], None),
        (SEVERAL, [OURS, {"kv_connector": "NixlConnector"}], "the KV connector NixlConnector"),
        (SEVERAL, [OURS, PULLS], None),
        (
            SEVERAL,
            [PULLS | BOTH_WAYS],
            "the KV connector HybridNixlConnector with bidirectional_kv_xfer",
        ),
        (None, [OURS], "the KV connector MultiConnector"),
    ],
)
def test_level_natural_serves_it_where_it_serves_all_in_the_list(
    module: str | None, children: list[dict[str, Any]], reason: str | None
) -> None:
    several = Connector.of(
        {
            "kv_connector": "MultiConnector",
            "kv_connector_module_path": module,
            "kv_connector_extra_config": {"connectors": children},
        }
    )
    assert several.refused({}) == reason
    drafting = several.refused({}, drafts=True)
    assert drafting == ("drafts beside HybridNixlConnector" if PULLS in children else reason)
