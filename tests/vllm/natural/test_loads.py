"""Loads of a KV connector: requests read what their tokens wrote, and none waits for ever."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hybrid_blocks.tools.profile.engine import Groups
from hybrid_blocks.vllm.level import CHECKPOINTS, Level
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from installed import installed
from oracle.engines import full
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import RequestStatus

from . import fake_connector
from .fake_connector import LoadingEngine, LoadingWorker, Plan
from .fake_worker import CorruptedError
from .fake_worker_engine import SCHEDULERS, make_engine
from .test_fake_worker import (
    MAX_MODEL_LEN,
    MAX_NUM_REQUESTS,
    MIXES,
    NATURAL_BLOCK_SIZE,
    Mix,
    _groups,
    state,
)

NUM_STEPS = int(os.environ.get("HYBRID_BLOCKS_ORACLE_STEPS", "100000"))


@contextmanager
def loading(
    config: KVCacheConfig,
    plan: Plan,
    *,
    level: Level = Level.NATURAL,
    policy: str = "fail",
    is_async: bool = False,
    is_one_call: bool = False,
    mix: Mix | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    configure: Callable[[VllmConfig], None] = lambda _: None,
) -> Iterator[LoadingEngine]:
    """Start an engine that has the connector."""

    def with_connector(config: VllmConfig) -> None:
        fake_connector.attach(config, policy)
        configure(config)

    with installed(level):
        engine = make_engine(
            config,
            plan.random,
            LoadingEngine,
            LoadingWorker,
            max_model_len=max_model_len,
            hash_block_size=plan.unit,
            scheduler_cls=SCHEDULERS[is_one_call][is_async],
            num_drafts=mix.num_drafts if mix else 0,
            configure=with_connector,
        )
        engine.scheduler.connector.plan = plan
        engine.worker.is_async_load = plan.is_async
        yield engine


def live(
    mix: Mix, seed: int, num_steps: int, *, is_async_load: bool, policy: str, **options: Any
) -> LoadingEngine:
    """Live a random life with loads at level ``natural``, and return the engine after it."""
    plan = Plan(Random(seed), NATURAL_BLOCK_SIZE, is_async_load, share_failing=0.3)
    config = mix.config(Level.NATURAL)
    with loading(config, plan, policy=policy, mix=mix, **options) as engine:
        engine.live(num_steps, MAX_NUM_REQUESTS)
        for pool in engine.scheduler.kv_cache_manager.block_pool.pools:
            pool.check_integrity()
    return engine


LOADED = ["full-state-fine", "full-3-states", "full-state-fine-drafts", "full-sliding", "full"]


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("is_async_load", [False, True], ids=["sync load", "async load"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_requests_read_what_was_loaded(policy: str, is_async_load: bool, is_async: bool) -> None:
    mix = MIXES[LOADED[is_async + 2 * is_async_load]]
    engine = live(mix, 5, 150, is_async_load=is_async_load, policy=policy, is_async=is_async)
    assert engine.scheduler.connector.num_loads > 20
    assert engine.num_finished > 10


@pytest.mark.parametrize("is_async_load", [False, True], ids=["sync load", "async load"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_states_are_kept_inside_chunks_beside_loads(
    is_async_load: bool, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, "learned/every=12")
    mix, options = MIXES["full-state-inside"], {"is_async": is_async}
    engine = live(mix, 5, 200, is_async_load=is_async_load, policy="recompute", **options)
    assert engine.scheduler.connector.num_loads > 20
    assert engine.worker.num_checkpoints > 10


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("is_one_call", [False, True], ids=["vLLM's calls", "one call"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("is_async_load", [False, True], ids=["sync load", "async load"])
@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("mix", LOADED)
def test_long_lives_read_what_was_loaded(
    mix: str, policy: str, is_async_load: bool, is_async: bool, is_one_call: bool
) -> None:
    num_steps = NUM_STEPS // (8 * len(LOADED))
    options = {"is_async": is_async, "is_one_call": is_one_call}
    engine = live(MIXES[mix], 11, num_steps, policy=policy, is_async_load=is_async_load, **options)
    assert engine.scheduler.connector.num_loads > num_steps // 20


def test_a_life_without_the_guard_of_loads_that_fail_is_noticed() -> None:
    """`commit` says that a load ended; here it says so when the load begins."""
    mix = MIXES["full-state-fine"]
    plan = Plan(Random(5), NATURAL_BLOCK_SIZE, share_failing=0.3)
    with loading(mix.config(Level.NATURAL), plan, mix=mix) as engine:
        manager = engine.scheduler.kv_cache_manager
        allocate = manager.allocate_slots

        def without_guard(request: Any, *args: Any, **kwargs: Any) -> Any:
            return allocate(request, *args, **{**kwargs, "delay_cache_blocks": False})

        manager.allocate_slots = without_guard
        with pytest.raises((CorruptedError, AssertionError)):
            engine.live(400, MAX_NUM_REQUESTS)


def hybrid(num_slabs: int, max_model_len: int = 700) -> NaturalKVCacheConfig:
    """Slabs of 33 attention blocks of 16 tokens, or of one of three states."""
    return Groups.HYBRID.natural_config(num_slabs, max_model_len)


def prompt(number: int, length: int) -> list[int]:
    return [(number * 31 + at * at) % 97 for at in range(length)]


def test_a_connector_is_shown_the_hit_that_is_there() -> None:
    plan = Plan(Random(0), 16, reach=10_000)
    with loading(hybrid(40), plan, max_model_len=700) as engine:
        first = engine.add(prompt(1, 200), 20)
        engine.finish()
        more = list(first.all_token_ids) + prompt(2, 30)
        again = engine.add(more, 4)
        engine.finish()
        shown = dict(engine.scheduler.connector.shown)
        # The answer ends after 219 computed tokens; its last checkpoint is at the prompt's.
        assert shown[again.request_id] >= 192
        assert shown[again.request_id] % 16 == 0


def test_a_load_beside_a_long_prompt_is_admitted_at_once() -> None:
    """Slabs that the prompt still needs are left to it, not as many slabs as it needs blocks."""

    def configure(config: VllmConfig) -> None:
        config.scheduler_config.long_prefill_token_threshold = 32

    plan = Plan(Random(0), 16, reach=96, most_steps=1)
    with loading(hybrid(12), plan, max_model_len=700, configure=configure) as engine:
        engine.add(prompt(1, 600), 4)
        engine.step()
        engine.step()
        loaded = engine.add(prompt(2, 100), 4)
        engine.step()
        assert loaded.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        engine.finish()


@pytest.mark.parametrize("reserves_all", [True, False])
def test_a_request_whose_load_failed_does_not_wait_for_itself(reserves_all: bool) -> None:
    def configure(config: VllmConfig) -> None:
        config.scheduler_config.scheduler_reserve_full_isl = reserves_all

    plan = Plan(Random(0), 16, reach=592, share_failing=1.0, most_steps=1)
    options: dict[str, Any] = {"policy": "recompute", "max_model_len": 700}
    with loading(hybrid(12), plan, configure=configure, **options) as engine:
        engine.add(prompt(1, 600), 4)
        for _ in range(4):
            engine.step()
        plan.share_failing = 0.0
        engine.finish()
        assert engine.num_finished == 1


def test_blocks_are_kept_until_the_step_of_an_aborted_request_has_ended() -> None:
    plan = Plan(Random(0), 16, reach=0)
    with loading(hybrid(40), plan, max_model_len=700, is_async=True) as engine:
        pool = engine.scheduler.kv_cache_manager.block_pool
        free = pool.get_num_free_blocks()
        request = engine.add(prompt(1, 200), 50)
        for _ in range(6):
            engine.step()
        engine.abort(request)
        assert pool.get_num_free_blocks() < free
        for _ in range(3):
            engine.step()
        assert pool.get_num_free_blocks() == free


def small(level: Level) -> KVCacheConfig:
    """9 blocks of 16 tokens for attention and states, block 0 among them; or 4 slabs."""
    if level is Level.NATURAL:
        return Mix((full(16), state()), 8, hash_block_size=4).config(level)
    return KVCacheConfig(9, [], _groups((full(16), state()), None))


@pytest.mark.parametrize("level", [Level.MANAGER, Level.NATURAL])
def test_a_state_that_is_loaded_with_the_first_step_waits_for_room(level: Level) -> None:
    """vLLM counts one block for the loaded state and the running one, and raises."""
    unit = 16 if level is Level.MANAGER else NATURAL_BLOCK_SIZE
    plan = Plan(Random(0), unit, is_async=False, reach=0)
    with loading(small(level), plan, level=level) as engine:
        engine.add(prompt(1, 1), 6)
        engine.step()
        plan.reach = 64
        engine.add(prompt(2, 65), 2)
        engine.finish()
        assert engine.num_finished == 2


def test_vllm_itself_raises_there() -> None:
    plan = Plan(Random(0), 16, is_async=False, reach=0)
    with loading(small(Level.OFF), plan, level=Level.OFF) as engine:
        engine.add(prompt(1, 1), 6)
        engine.step()
        plan.reach = 64
        engine.add(prompt(2, 65), 2)
        with pytest.raises(ValueError, match="free blocks"):
            engine.step()
