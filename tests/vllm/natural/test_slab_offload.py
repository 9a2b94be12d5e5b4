"""Own offload over slabs: what comes back from host memory is what the tokens wrote."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from hybrid_blocks.vllm.level import CHECKPOINTS, Level
from installed import installed
from vllm.config import VllmConfig
from vllm.v1.kv_offload.base import get_offload_group_idx

from . import fake_host
from .fake_connector import LoadingEngine
from .fake_host import Host, HostWorker
from .fake_worker import CorruptedError
from .fake_worker_engine import SCHEDULERS, make_engine
from .test_fake_worker import MAX_MODEL_LEN, MAX_NUM_REQUESTS, MIXES, NATURAL_BLOCK_SIZE, Mix

NUM_STEPS = int(os.environ.get("HYBRID_BLOCKS_ORACLE_STEPS", "100000"))


class HostEngine(LoadingEngine):
    """An engine with host memory; it steps on until all is stored."""

    worker: HostWorker

    def reset(self) -> None:
        """The caches are reset, device and host, if they may be."""
        if self.may_reset:
            self.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)

    def drain(self) -> None:
        """Step on until no transfer is under way."""
        for _ in range(50):
            if not self.scheduler.connector.has_pending_push_work() and not self._in_flight:
                return
            self.step()
            while self._in_flight:
                self._take_in(*self._in_flight.popleft())
        raise AssertionError("transfers do not end")


@contextmanager
def offloading(
    mix: Mix,
    seed: int,
    *,
    host_chunks: int = 4_000,
    is_async: bool = False,
    is_one_call: bool = False,
    attach: Callable[[VllmConfig, int], None] = fake_host.attach,
    worker_cls: type[HostWorker] = HostWorker,
) -> Iterator[HostEngine]:
    """Start an engine with host memory."""
    random = Random(seed)
    with installed(Level.NATURAL):
        engine = make_engine(
            mix.config(Level.NATURAL),
            random,
            HostEngine,
            worker_cls,
            max_model_len=MAX_MODEL_LEN,
            hash_block_size=NATURAL_BLOCK_SIZE,
            scheduler_cls=SCHEDULERS[is_one_call][is_async],
            num_drafts=mix.num_drafts,
            draft_method="ngram" if mix.drafter is None else "eagle",
            configure=lambda vllm: attach(vllm, host_chunks),
        )
        engine.worker.host = Host(random)
        yield engine


OFFLOADED = [
    *("full", "full-sliding", "full-state-fine", "full-3-states", "full-state-fine-drafts"),
    *("full-state-drafter", "full-sliding-drafter", "mla-states-drafter"),
]


def live(mix: Mix, seed: int, num_steps: int, **options: Any) -> HostEngine:
    with offloading(mix, seed, **options) as engine:
        engine.live(num_steps, MAX_NUM_REQUESTS)
        engine.drain()
        pools = engine.scheduler.kv_cache_manager.block_pool.pools
        assert sum(pool.num_live for pool in pools) == 0
        for pool in pools:
            pool.check_integrity()
    return engine


LAZY = partial(fake_host.attach, store="lazy")
STORES = pytest.mark.parametrize("attach", [fake_host.attach, LAZY], ids=["eager", "lazy"])


@STORES
@pytest.mark.parametrize(
    "mix", ["full-state-fine", "full-sliding", "full-state-fine-drafts", "full-state-drafter"]
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_every_request_reads_what_came_back(mix: str, is_async: bool, attach: Any) -> None:
    engine = live(MIXES[mix], 3, 200, is_async=is_async, attach=attach)
    assert engine.num_finished > 20
    assert engine.worker.host.num_stored > 100
    assert engine.worker.host.num_loaded > 20


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_states_kept_inside_chunks_return(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINTS, "learned/every=12")
    engine = live(MIXES["full-state-inside"], 3, 200, is_async=is_async)
    assert engine.worker.num_checkpoints > 10
    assert engine.worker.host.num_stored > 100
    assert engine.worker.host.num_loaded > 20


@pytest.mark.parametrize("is_preempted", [False, True])
def test_a_lazy_store_waits_for_its_request_to_end_or_be_preempted(is_preempted: bool) -> None:
    with offloading(MIXES["full"], 1, attach=LAZY) as engine:
        request = engine.add([(at * 7) % 97 for at in range(90)], 12)
        while request.num_output_tokens < (4 if is_preempted else 11):
            engine.step()
        assert engine.worker.host.num_stored == 0
        if is_preempted:
            assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        engine.finish()
        engine.drain()
        assert request.num_preemptions == is_preempted
        more = engine.worker.host.num_stored - 101 // NATURAL_BLOCK_SIZE
        assert more >= 0 if is_preempted else more == 0


@pytest.mark.parametrize("mix", ["full-state-fine", "full-3-states"])
def test_an_answer_leaves_its_last_state_alone(mix: str) -> None:
    """The device keeps one that follows the answer; each takes the place of the one before."""
    with offloading(MIXES[mix], 1) as engine:
        manager = engine.scheduler.connector._side.manager
        states = engine.scheduler.connector._side._states
        stored: list[tuple[int, int]] = []
        prepare = manager.prepare_store

        def note(keys: Any, context: Any) -> Any:
            output = prepare(keys, context)
            groups = [(get_offload_group_idx(key), key) for key in output.keys_to_store]
            position = context.get_offload_key_position
            stored.extend((group, position(key)) for group, key in groups if group in states)
            return output

        manager.prepare_store = note
        kept = engine.worker.num_copies
        engine.add([(at * 7) % 97 for at in range(18)], 140)
        engine.finish()
        engine.drain()
        assert engine.worker.num_copies > kept + len(states)
        answers = [it for it in stored if it[1] > 18]
        assert sorted(group for group, _ in answers) == list(states)
        assert {end for _, end in answers} == {128}


def test_a_host_that_is_too_small_loses_hits_alone() -> None:
    engine = live(MIXES["full-state-fine"], 4, 200, host_chunks=40)
    assert engine.num_finished > 20


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("is_one_call", [False, True], ids=["vLLM's calls", "one call"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("host_chunks", [40, 4_000])
@pytest.mark.parametrize("mix", OFFLOADED)
def test_long_lives_read_what_came_back(
    mix: str, host_chunks: int, is_async: bool, is_one_call: bool
) -> None:
    options = {"host_chunks": host_chunks, "is_async": is_async, "is_one_call": is_one_call}
    live(MIXES[mix], 7, NUM_STEPS // (8 * len(OFFLOADED)), **options)


def conversation(engine: HostEngine) -> list[int]:
    """A turn, then others that take its place on the device. Returns its tokens."""
    first = engine.add([(at * 7) % 97 for at in range(90)], 12)
    engine.finish()
    for number in range(12):
        engine.add([(number * 13 + at * at) % 97 for at in range(120)], 4)
        engine.finish()
    engine.drain()
    return list(first.all_token_ids)


def hits_of_next_turn(mix: Mix, **options: Any) -> tuple[int, int]:
    """Return the tokens that the next turn of the first prompt finds, and the chunks loaded."""
    with offloading(mix, 1, **options) as engine:
        tokens = conversation(engine)
        before, loaded = engine.num_cached_tokens, engine.worker.host.num_loaded
        engine.add([*tokens, 1, 2, 3], 2)
        engine.finish()
        return engine.num_cached_tokens - before, engine.worker.host.num_loaded - loaded


@STORES
@pytest.mark.parametrize("mix", ["full-state-fine", "full-3-states"])
def test_the_next_turn_finds_in_host_memory_what_a_device_would_hold(mix: str, attach: Any) -> None:
    hit, num_loaded = hits_of_next_turn(MIXES[mix], attach=attach)
    assert num_loaded > 0
    on_device, not_loaded = hits_of_next_turn(replace(MIXES[mix], num_blocks=2_000))
    assert not_loaded == 0
    assert hit >= on_device > 0


@pytest.mark.parametrize("transfer", ["text", 7, ["a"], {"max_load_tokens": "b"}])
def test_what_a_client_says_of_loads_and_cannot_mean_is_left_out(transfer: object) -> None:
    with offloading(MIXES["full-state-fine"], 1) as engine:
        engine.add(list(range(50)), 2, transfer=transfer)
        engine.finish()
        assert engine.num_finished == 1


def test_what_is_wrong_in_host_memory_is_noticed() -> None:
    with offloading(MIXES["full-state-fine"], 1) as engine:
        tokens = conversation(engine)
        fake_host.forget(engine.worker.host)
        engine.add([*tokens, 1, 2, 3], 2)
        with pytest.raises(CorruptedError):
            engine.finish()


def test_blocks_keep_an_owner_until_their_copies_have_ended() -> None:
    with offloading(MIXES["full-state-fine"], 3) as engine:
        engine.worker.host.least_steps, engine.worker.host.most_steps = 40, 50
        engine.add([(at * 7) % 97 for at in range(90)], 2)
        engine.finish()
        engine.step()
        pools = engine.scheduler.kv_cache_manager.block_pool.pools
        # 22 blocks of four tokens, and at least one state of each group.
        assert pools[0].num_live == 22
        assert pools[1].num_live >= 2
        for moving in engine.worker.host.moving:
            moving.steps = 0
        engine.drain()
        assert sum(pool.num_live for pool in pools) == 0


def test_a_reset_gives_up_copies_that_are_under_way() -> None:
    with offloading(MIXES["full-state-fine"], 3) as engine:
        engine.worker.host.least_steps, engine.worker.host.most_steps = 40, 50
        tokens = [(at * 7) % 97 for at in range(90)]
        engine.add(tokens, 2)
        engine.finish()
        engine.step()
        assert engine.scheduler.reset_prefix_cache()
        engine.drain()
        before = engine.num_cached_tokens
        engine.add(tokens, 2)
        engine.finish()
        assert engine.num_cached_tokens == before
