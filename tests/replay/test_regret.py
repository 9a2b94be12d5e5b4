"""A placement that learns is nearly as good as the best fixed one of each load, 300 requests on."""

import math

import pytest
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, model_cache
from hybrid_blocks.tools.replay.cache import SharedCache
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.run import Variant
from hybrid_blocks.tools.trace import Trace, generate_workload
from hybrid_blocks.tools.trace.builder import TraceBuilder
from hybrid_blocks.tools.trace.workloads import KINDS
from loads import LOADS as OF_TESTS
from loads import generate
from regret import Phase, Regret, hit_rate, measure_regret, phases

pytestmark = pytest.mark.wheel

ENGINE = EngineConfig(max_num_seqs=16, watermark=0.0, reject_too_large=True)
DISTANCES = (0, 128, 512, 1_024, 2_048, 8_192)
FIXED = tuple(Variant(placement=f"fixed:{distance}") for distance in DISTANCES)
ENOUGH = 0.95

LOADS = (*KINDS, *OF_TESTS)
QUICK = ("conversations", "changing")


def regrets(name: str, num_requests: int, model: str, share: float, seed: int) -> list[Regret]:
    trace = generate(name, seed, num_requests)
    changes = (num_requests // 2,) if len(OF_TESTS.get(name, ())) > 1 else ()
    cache = model_cache(model, 2**40, Deployment(in_flight_batches=1))
    return list(
        measure_regret(
            trace,
            SharedCache(trace, cache).at(share),
            ENGINE,
            learned=Variant(),
            fixed=FIXED,
            over=phases(num_requests, changes),
        )
    )


def check(found: list[Regret]) -> None:
    for regret in found:
        text = ", ".join(f"{name} {rate:.3f}" for name, rate in regret.fixed.items())
        assert regret.of_best >= ENOUGH, (
            f"requests {regret.phase.first} to {regret.phase.end}: learned {regret.learned:.3f} is "
            f"{regret.of_best:.3f} of {regret.best}; {text}"
        )


KINDS_OF_LOADS = [it if it in QUICK else pytest.param(it, marks=pytest.mark.full) for it in LOADS]


@pytest.mark.parametrize("name", KINDS_OF_LOADS)
def test_the_learned_placement_is_nearly_the_best_fixed_one(name: str) -> None:
    check(regrets(name, 900, "Qwen3.5-27B", 0.2, seed=11))


MISSED = {("changing", "Qwen3.5-27B", 0.05): "0.949 of the best before the change"}


@pytest.mark.full
@pytest.mark.parametrize("share", [0.05, 0.1, 0.4, 1.0, math.inf])
@pytest.mark.parametrize("model", ["Qwen3.5-27B", "Nemotron-H-8B"])
@pytest.mark.parametrize("name", LOADS)
def test_so_it_is_at_every_size_and_with_other_models(
    name: str, model: str, share: float, request: pytest.FixtureRequest
) -> None:
    if reason := MISSED.get((name, model, share)):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    check(regrets(name, 1500, model, share, seed=12))


# --- the measure itself -----------------------------------------------------------


def admitted(*hits: int) -> tuple[Trace, Timeline]:
    """Requests of 100 prompt tokens, admitted in reverse order."""
    builder, timeline = TraceBuilder("admitted"), Timeline()
    for _ in hits:
        builder.add([builder.fresh(110)], arrival=0, prompt_tokens=100, output_tokens=10)
    for request, hit in zip(reversed(range(len(hits))), hits, strict=True):
        timeline.admit(request, hit)
    return builder.build(), timeline


def test_hits_count_in_the_order_of_admission() -> None:
    trace, timeline = admitted(0, 50, 100, 100)
    assert hit_rate(trace, timeline, Phase(first=1, end=3)) == pytest.approx(0.75)
    assert hit_rate(trace, timeline, Phase(first=0, end=9)) == pytest.approx(0.625)


def test_phases_leave_out_what_learning_takes() -> None:
    assert phases(1_000) == (Phase(first=300, end=1_000),)
    assert phases(1_400, (700,)) == (Phase(first=300, end=700), Phase(first=1_000, end=1_400))


def test_a_placement_that_is_worse_is_told_apart() -> None:
    trace = generate_workload("documents", 11, 500)
    cache = model_cache("Qwen3.5-27B", 2**42, Deployment(in_flight_batches=1))
    (found,) = measure_regret(
        trace,
        cache,
        ENGINE,
        learned=Variant(placement="fixed:0"),
        fixed=FIXED,
        over=phases(len(trace)),
    )
    assert found.best in {"fixed:1024", "fixed:2048"}
    assert found.of_best < 0.9
    with pytest.raises(AssertionError, match="learned"):
        check([found])
