"""vLLM's own manager is the oracle: every answer to every call is the same."""

from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from examples import examples
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from installed import installed
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_metrics
from vllm.v1.core.kv_cache_manager import KVCacheManager as VllmKVCacheManager
from vllm.v1.core.kv_cache_utils import init_none_hash

from .engines import ATTENTION, CONTEXT_PARALLEL, ENGINES, MAMBA, RINGS, SCRATCH, Engine, tight
from .life import Life
from .residency import Collector
from .twin import RefusedError, Twin

init_none_hash(sha256)

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.just(0)),
        st.tuples(st.just("step"), st.sampled_from((4, 16, 24, 64, 64))),
        st.tuples(st.just("step"), st.just(64)),
        st.tuples(st.sampled_from(("abort", "preempt", "evict", "reset", "look")), st.just(0)),
    ),
    min_size=4,
    max_size=60,
)


def native(engine: Engine, **options: Any) -> NativeKVCacheManager:
    with installed():
        return NativeKVCacheManager(**engine.arguments(), **options)


def live(
    engine: Engine,
    actions: list[tuple[str, int]],
    seed: int,
    *,
    is_async: bool,
    is_measured: bool = False,
) -> Life:
    theirs, ours = (Collector() if is_measured else None for _ in range(2))
    expected = VllmKVCacheManager(**engine.arguments(), metrics_collector=theirs)
    twin = Twin(expected, native(engine, metrics_collector=ours))
    life = Life(engine, twin, Random(seed), is_async=is_async)
    # All that happens in a call happens at one time.
    clock = SimpleNamespace(monotonic_ns=lambda: twin.step * 10**9)
    with suppress(RefusedError), patch.object(kv_cache_metrics, "time", clock):
        life.run(actions)
    return life


@pytest.mark.parametrize("name", [*ATTENTION, *MAMBA, *RINGS, *SCRATCH, *CONTEXT_PARALLEL])
@pytest.mark.parametrize("is_tight", [False, True], ids=["roomy", "tight"])
@settings(max_examples=examples(3), deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=ACTIONS, seed=st.integers(0, 2**32), is_async=st.booleans())
def test_every_decision_of_a_random_life_is_vllms(
    name: str, is_tight: bool, actions: list[tuple[str, int]], seed: int, is_async: bool
) -> None:
    engine = ENGINES[name]
    live(tight(engine) if is_tight else engine, actions, seed, is_async=is_async)


@pytest.mark.parametrize("name", [*ATTENTION, *MAMBA, *RINGS, *SCRATCH])
@settings(max_examples=examples(2), deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=ACTIONS, seed=st.integers(0, 2**32), is_tight=st.booleans())
def test_residency_metrics_are_told_of_the_same_blocks_in_the_same_order(
    name: str, actions: list[tuple[str, int]], seed: int, is_tight: bool
) -> None:
    engine = tight(ENGINES[name]) if is_tight else ENGINES[name]
    life = live(engine, actions, seed, is_async=seed % 2 == 0, is_measured=True)
    collector = life.twin.managers[1].block_pool.metrics_collector
    assert isinstance(collector, Collector)
    assert collector.calls or not life.running
