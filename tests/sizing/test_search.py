"""A search finds what trying everything finds, with fewer steps."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hybrid_blocks.model import load_model
from hybrid_blocks.plan import Deployment
from hybrid_blocks.replay import (
    Engine,
    EngineConfig,
    ManagerName,
    StepTime,
    block_cache,
    make_manager,
)
from hybrid_blocks.replay.latencies import KINDS
from hybrid_blocks.sizing.binds import ATTENTION, BATCH, COMPUTE, STATE_SLOTS
from hybrid_blocks.sizing.candidate import Candidate, make_candidates, parse_prices
from hybrid_blocks.sizing.errors import SizingError
from hybrid_blocks.sizing.evaluate import evaluate
from hybrid_blocks.sizing.fit import Error, Fit
from hybrid_blocks.sizing.floor import Floor
from hybrid_blocks.sizing.question import ESTIMATE, SCALED, Question
from hybrid_blocks.sizing.replicas import share_out
from hybrid_blocks.sizing.search import search
from hybrid_blocks.sizing.slo import duration, parse_slo
from hybrid_blocks.trace import Trace, generate_workload, shared_prefixes
from recordings import poisson

CARDS = ("L4", "A10", "L40S", "H100-80GB")
SLOS = {
    "ttft": "ttft_p95<900ms",
    "all": "ttft_p95<2s,tpot_p50<60ms,e2e_p99<40s",
    "hopeless": "tpot_p50<1ms",
}


def asked(trace: Trace, slo: str, model: str = "Granite-4.0-H-Tiny", **more: object) -> Question:
    return Question(
        trace=trace,
        prefixes=shared_prefixes(trace, 16),
        model=load_model(model),
        targets=parse_slo(slo),
        deployment=Deployment(in_flight_batches=1, max_num_seqs=64, max_num_batched_tokens=4096),
        config=EngineConfig(max_num_seqs=64, max_num_batched_tokens=4096),
        **more,  # type: ignore[arg-type]
    )


TRACES = {
    "poisson": lambda: poisson(120, 30.0),
    "conversations": lambda: generate_workload("conversations", 0, 60, 16).at_once(),
}


@pytest.mark.parametrize("slo", SLOS.values(), ids=SLOS)
@pytest.mark.parametrize("make", TRACES.values(), ids=TRACES)
def test_a_search_finds_what_brute_force_finds(make: Callable[[], Trace], slo: str) -> None:
    question = asked(make(), slo)
    candidates = make_candidates(CARDS, (1, 2), {}, (1, 2))
    found = search(question, candidates)
    every = [evaluate(question, candidate, is_whole=True) for candidate in candidates]
    serving = [row for row in every if row.serves]
    best = min(serving, key=lambda row: row.candidate.cost, default=None)
    assert (found.best and found.best.candidate) == (best and best.candidate)
    if best is not None and found.best is not None:
        assert found.best.measured == best.measured
    assert sum(row.steps for row in found.rows) < sum(row.steps for row in every)
    for row in found.rows[:-1]:
        assert row.missed or row.why_not


@pytest.mark.parametrize("num_replicas", [2, 3, 7])
def test_replicas_share_out_the_requests_and_keep_sessions_together(num_replicas: int) -> None:
    trace = generate_workload("conversations", 0, 200, 16)
    parts = list(share_out(trace, num_replicas))
    assert len(parts) == num_replicas
    requests = sorted(tuple(part.token_ids(one)) for part in parts for one in range(len(part)))
    assert requests == sorted(tuple(trace.token_ids(one)) for one in range(len(trace)))
    sessions = [set(part.session.tolist()) - {-1} for part in parts]
    assert sum(map(len, sessions)) == len(set.union(*sessions))
    tokens = [int(part.total_tokens.sum()) for part in parts]
    assert max(tokens) < 1.5 * min(tokens)
    for part in parts:
        followers = np.flatnonzero(part.follows >= 0)
        assert (part.follows[followers] < followers).all()
    assert sum((part.follows >= 0).sum() for part in parts) == (trace.follows >= 0).sum()


def test_two_replicas_answer_sooner_than_one_under_load() -> None:
    question = asked(poisson(120, 30.0), "ttft_p95<900s")
    one, two = (
        evaluate(question, Candidate(card="L4", count=1, cost=1.0, replicas=num)) for num in (1, 2)
    )
    assert two.measured["ttft_p95"] < 0.8 * one.measured["ttft_p95"]
    assert two.candidate.name == "2 replicas of 1xL4"


def test_a_target_is_lost_only_once_its_percentile_is() -> None:
    draw = np.random.default_rng(0)
    (target,) = parse_slo("ttft_p95<1s")
    for num in (1, 2, 19, 20, 21, 101):
        for late in range(num + 1):
            seconds = np.concatenate((draw.uniform(1, 3, late), np.zeros(num - late)))
            missed = float(np.percentile(seconds, 95)) >= target.seconds
            assert target.is_lost(late, num) <= missed


@pytest.mark.parametrize("make", TRACES.values(), ids=TRACES)
def test_no_request_is_sooner_than_its_floor(make: Callable[[], Trace]) -> None:
    trace = make()
    cache, config = block_cache(60_000, 16), EngineConfig(max_num_batched_tokens=1024)
    engine = Engine(trace, make_manager(ManagerName.RUST, cache, config), cache, config)
    engine.run()
    floor = Floor(trace, shared_prefixes(trace, 16), 16, config.step_time, 1024)
    for kind in KINDS:
        assert (engine.latencies.of(kind) >= floor.of(kind) - 1e-9).all()


USED = {"H100-80GB": 0.92, "A100-80GB": 0.75, "A100-40GB": 0.82}


@pytest.mark.parametrize(
    ("model", "trace", "card", "seqs", "binds"),
    [
        ("Granite-4.0-H-Tiny", poisson(40, 2.0), "H100-80GB", 64, COMPUTE),
        ("Granite-4.0-H-Tiny", poisson(60, 1e6), "H100-80GB", 8, BATCH),
        ("Qwen3.5-27B", poisson(60, 1e6), "A100-80GB", 256, STATE_SLOTS),
        ("Phi-4", poisson(90, 1e6), "A100-40GB", 256, ATTENTION),
    ],
)
def test_a_row_says_what_binds(model: str, trace: Trace, card: str, seqs: int, binds: str) -> None:
    question = asked(trace, "ttft_p99<1000s", model)
    config = EngineConfig(max_num_seqs=seqs, max_num_batched_tokens=4096)
    question = replace(question, config=config, utilization=USED[card])
    row = evaluate(question, Candidate(card=card, count=1, cost=1.0))
    assert (row.binds, row.sure) == (binds, ESTIMATE)


def test_cards_too_small_for_the_weights_say_so() -> None:
    row = evaluate(asked(poisson(4, 1.0), "ttft_p50<1s", "Qwen3.5-27B"), make_one("L4"))
    assert not row.serves
    assert "nothing is left for the cache" in str(row.why_not)


def make_one(card: str) -> Candidate:
    return Candidate(card=card, count=1, cost=1.0)


def test_a_fit_holds_for_its_own_cards_and_is_scaled_for_others() -> None:
    errors = tuple(
        Error(kind=kind, p50=0.1, p95=0.3, recorded=(1.0, 2.0), virtual=(1.1, 2.0))
        for kind in ("ttft", "e2e")
    )
    clock = StepTime(fixed=0.02, per_prefill_token=1e-4)
    fitted = Fit(step_time=clock, requests=50, errors=errors)
    question = asked(poisson(4, 1.0), "ttft_p50<1s", fit=fitted, fitted_on=make_one("L4"))

    def of(card: str) -> tuple[StepTime, str]:
        return question.clock(make_one(card), question.cache(make_one(card)))

    own, sure = of("L4")
    assert own == clock
    assert sure == "fitted; ttft off by 10% (p50), 30% (p95)"
    other, sure = of("H100-80GB")
    assert sure == SCALED
    assert other.per_prefill_token == pytest.approx(1e-4 * 121 / 989)
    assert other.fixed < clock.fixed / 3


def test_prices_order_the_cards() -> None:
    prices = parse_prices(["H100-80GB=2.5", "l40s=0.8"])
    found = make_candidates(list(prices), (1, 4), prices)
    assert [one.name for one in found] == ["1xL40S", "1xH100-80GB", "4xL40S", "4xH100-80GB"]
    assert [one.cost for one in found] == [0.8, 2.5, 3.2, 10.0]
    with pytest.raises(SizingError, match="says nothing of L4"):
        make_candidates(["L4"], (1,), prices)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ttft<2s", "is no target"),
        ("ttft_p95<2", "is no target"),
        ("ttft_p97<2s", "p97 is none of"),
        ("late_p95<2s", "late is none of"),
        ("ttft_p95<0s", "in no time"),
        ("ttft_p95<1s,ttft_p95<2s", "twice"),
    ],
)
def test_a_target_that_is_none_is_refused(text: str, error: str) -> None:
    with pytest.raises(SizingError, match=error):
        parse_slo(text)


@pytest.mark.parametrize("text", ["H100-80GB", "H100-80GB=0", "H100-80GB=-1", "H100-80GB=x"])
def test_a_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SizingError, match="write a card and its price"):
        parse_prices([text])


def test_seconds_are_written_as_people_write_them() -> None:
    assert [duration(it) for it in (0.04, 1.234, 210.0, 12_345.0)] == [
        *("40 ms", "1.23 s", "210 s", "12,345 s")
    ]
