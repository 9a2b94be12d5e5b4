"""vLLM's schedulers over the manager of level natural, with a worker that reads its blocks."""

import json
from collections import deque
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from examples import examples
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.metrics.engine import ENDS
from hybrid_blocks.tools.profile.engine import Groups, make_hasher, make_scheduler, scheduler_over
from hybrid_blocks.vllm import check
from hybrid_blocks.vllm.level import CHECKPOINTS, Level
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager
from hybrid_blocks.vllm.scheduler.one_call import AsyncScheduler as BatchedScheduler
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import BlockStored
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.request import Request, RequestStatus

from .manager_worker import Worker, next_turn, token_at

pytestmark = pytest.mark.usefixtures("natural_level")

BLOCKS_PER_SLAB = 528 // 16
MAX_LEN = 700


class Engine:
    """A scheduler over ``num_slabs`` slabs and its worker; outputs are a step late if asked."""

    def __init__(
        self,
        num_slabs: int,
        cls: type[Scheduler] = AsyncScheduler,
        *,
        events: bool = False,
        interval: int | None = None,
        has_priorities: bool = False,
        chunk: int = 0,
    ) -> None:
        def configure(config: Any) -> None:
            if events:
                # The test takes the events from the manager: no socket on a port that all share.
                config.kv_events_config = KVEventsConfig(
                    enable_kv_cache_events=True, publisher="null"
                )
            if has_priorities:
                config.scheduler_config.policy = "priority"
            config.scheduler_config.long_prefill_token_threshold = chunk

        self.has_priorities = has_priorities

        config = replace(
            Groups.HYBRID.natural_config(num_slabs, MAX_LEN), checkpoint_interval=interval
        )
        self.scheduler: Any = scheduler_over(
            config,
            num_requests=16,
            max_model_len=MAX_LEN,
            max_num_batched_tokens=256,
            hash_block_size=16,
            scheduler_cls=cls,
            configure=configure,
        )
        self.manager: Any = self.scheduler.kv_cache_manager
        self.worker = Worker(BLOCKS_PER_SLAB)
        self.worker.num_known = self._num_known
        self.lag = int(isinstance(self.scheduler, AsyncScheduler))
        self.in_flight: deque[Any] = deque()
        self.hasher = make_hasher()
        self.num_added = 0
        self.outputs: list[str] = []
        self.hits: dict[str, int] = {}

    def _num_known(self, request_id: str) -> int:
        request = self.scheduler.requests[request_id]
        return int(request.num_tokens)

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        stop: int | None = None,
        resumable: bool = False,
        at: Request | None = None,
        priority: int = 0,
        **options: Any,
    ) -> Request:
        """Add a request, or the next input of the session ``at``."""
        request = Request(
            request_id=f"request{self.num_added}" if at is None else at.request_id,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(
                max_tokens=max_tokens,
                ignore_eos=True,
                stop_token_ids=[] if stop is None else [stop],
                **options,
            ),
            pooling_params=None,
            block_hasher=self.hasher,
            resumable=resumable,
            priority=priority,
        )
        self.num_added += at is None
        self.scheduler.add_request(request)
        return request

    def step(self) -> Any:
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.hits[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        starts = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        self.hits |= {one: start for one, start in starts if one in cached.resumed_req_ids}
        self.in_flight.append((output, self.worker.run(output)))
        while len(self.in_flight) > self.lag:
            self.scheduler.update_from_output(*self.in_flight.popleft())
        self.manager.block_pool.pools[0].check_integrity()
        return output

    def finish(self, most: int = 4000) -> None:
        for _ in range(most):
            if not self.scheduler.requests:
                break
            self.step()
        assert not self.scheduler.requests, "some request runs for ever"
        while self.in_flight:
            self.scheduler.update_from_output(*self.in_flight.popleft())

    def counts(self) -> dict[str, int]:
        return dict(self.manager._counts())


def test_the_configuration_decides_which_manager_there_is() -> None:
    engine = Engine(20)
    assert type(engine.manager) is NaturalKVCacheManager
    assert engine.manager.hybrid_blocks_level is Level.NATURAL
    assert engine.manager.num_slots(0) == 20 * BLOCKS_PER_SLAB * 16


def test_slabs_cannot_be_managed_by_managers_that_do_not_know_them() -> None:
    config = Groups.HYBRID.natural_config(20, MAX_LEN)
    with pytest.raises(
        InvalidArgumentError, match="prefill context parallelism; set HYBRID_BLOCKS=manager"
    ):
        KVCacheManager(config, MAX_LEN, 704, 16, pcp_world_size=2)


def test_a_request_takes_slots_for_its_states_once_and_blocks_by_number() -> None:
    engine = Engine(20)
    engine.add(list(range(40)), 100)
    (new,) = engine.step().scheduled_new_reqs
    attention, *states = new.block_ids
    # The first chunk ends at the last whole block of the prompt, where a state is kept.
    assert [len(table) for table in (attention, *states)] == [2, 1, 1, 1]
    slabs = {attention[0] // BLOCKS_PER_SLAB, *(slot for (slot,) in states)}
    assert len(slabs) == 4
    assert 0 not in slabs
    pool = engine.manager.block_pool
    assert pool.get_num_free_blocks() == pool.free_block_queue.num_free_blocks == 19 - 4
    assert pool.get_usage() == pytest.approx(4 / 19)
    engine.finish()
    assert pool.get_num_free_blocks() == pool.free_block_queue.num_free_blocks == 19


def test_attention_that_starts_on_a_slab_has_it_zeroed_once() -> None:
    engine = Engine(20)
    engine.add(list(range(40)), 10)
    first = engine.step()
    (slab,) = first.new_block_ids_to_zero
    assert slab == first.scheduled_new_reqs[0].block_ids[0][0] // BLOCKS_PER_SLAB
    engine.add(list(range(100, 140)), 10)
    assert engine.step().new_block_ids_to_zero is None, "the second shares the first one's slab"


def test_vllms_first_cpu_runner_is_told_the_blocks_of_the_slab() -> None:
    engine = Engine(20)
    engine.manager.kv_cache_config.zeroes_single_blocks = True
    engine.add(list(range(40)), 10)
    output = engine.scheduler.schedule()
    (table, *_) = output.scheduled_new_reqs[0].block_ids
    first = table[0] // BLOCKS_PER_SLAB * BLOCKS_PER_SLAB
    assert output.new_block_ids_to_zero == list(range(first, first + BLOCKS_PER_SLAB))


@pytest.mark.parametrize("num_prompt", [60, 100, 300, 500])
def test_short_prompts_are_hit_to_their_last_hash_block_once_they_are_known_to_return(
    num_prompt: int,
) -> None:
    engine = Engine(200)
    for number in range(24):
        prompt = [1000 * number + at for at in range(num_prompt)]
        engine.add(prompt, 4)
        engine.finish()
        again = engine.add(prompt, 4)
        engine.finish()
    assert engine.hits[again.request_id] == (num_prompt - 1) // 16 * 16
    assert engine.counts()["forks"] % 3 == 0


def test_a_prompt_that_nothing_is_known_of_is_hit_at_places_at_all_distances() -> None:
    engine = Engine(40)
    prompt = list(range(500))
    engine.add(prompt, 4)
    engine.finish()
    again = engine.add(prompt, 4)
    engine.finish()
    assert engine.hits[again.request_id] >= 320
    assert engine.counts()["forks"] == 3


def test_the_next_turn_goes_on_from_the_answer() -> None:
    engine = Engine(40)
    prompt = list(range(100))
    engine.add(prompt, 200)
    engine.finish()
    following = engine.add(next_turn(prompt, 200, list(range(500, 520))), 4)
    engine.finish()
    assert engine.hits[following.request_id] >= 299 // 64 * 64
    counts = engine.counts()
    assert counts["followed"] >= 9
    assert counts["superseded"] >= 6, "one copy follows, not one a border"


def test_prompts_that_share_a_prefix_meet_at_its_end() -> None:
    engine = Engine(60)
    shared = list(range(320))
    for number in range(3):
        request = engine.add(shared + [600 + number] * 150, 4)
        engine.finish()
        if number == 2:
            assert engine.hits[request.request_id] == 320, (
                "the second one left a state at the branch"
            )


def test_a_preempted_request_goes_on_from_a_copy() -> None:
    engine = Engine(40)
    request = engine.add(list(range(100)), 300)
    for _ in range(150):
        engine.step()
    engine.scheduler.running.remove(request)
    engine.scheduler._preempt_request(request, 0.0)
    engine.finish()
    assert request.num_preemptions == 1
    assert engine.counts()["forks"] == 3
    assert engine.hits[request.request_id] >= 249 // 64 * 64


def test_a_reset_gives_all_slabs_back() -> None:
    engine = Engine(40)
    engine.add(list(range(300)), 20)
    engine.finish()
    pools = engine.manager.block_pool.pools
    assert any(pool.num_owned_slabs for pool in pools)
    assert engine.scheduler.reset_prefix_cache()
    assert [pool.num_owned_slabs for pool in pools] == [0, 0]


def test_figures_say_where_slabs_and_states_are() -> None:
    engine = Engine(40)
    engine.add(list(range(300)), 200)
    for _ in range(120):
        engine.step()
    samples = {
        (sample.family, *sample.labels.values()): sample.value
        for sample in engine.manager._samples()
    }
    slabs = {key[1]: value for key, value in samples.items() if key[0] == "hybrid_blocks_slabs"}
    assert sum(slabs.values()) == 39
    assert slabs.keys() == {"attention", "states", "free"}
    assert slabs["states"] >= 3
    assert samples["hybrid_blocks_blocks", "states", "live"] == 3
    assert samples["hybrid_blocks_checkpoints_written", "followed"] >= 3
    assert samples["hybrid_blocks_hits", "unseen"] == 1
    assert {key[1] for key in samples if key[0] == "hybrid_blocks_hits"} == set(ENDS)


@pytest.mark.parametrize("groups", [Groups.FULL, Groups.SWA])
def test_attention_alone_is_laid_out_in_slabs_too(groups: Groups) -> None:
    scheduler: Any = make_scheduler(
        groups, num_requests=4, num_blocks=400, max_model_len=MAX_LEN, is_natural=True
    )
    hasher = make_hasher()
    hits = []
    for number in range(3):
        request = Request(
            request_id=str(number),
            prompt_token_ids=list(range(100)),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=hasher,
        )
        scheduler.add_request(request)
        (new,) = scheduler.schedule().scheduled_new_reqs
        hits.append(new.num_computed_tokens)
        scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    assert hits == [0, 96, 96]
    assert scheduler.reset_prefix_cache()


def test_drafts_get_slots_of_their_own_and_no_copy_follows_them() -> None:
    config = Groups.HYBRID.natural_config(60, MAX_LEN)
    for group in config.kv_cache_groups[1:]:
        spec: Any = group.kv_cache_spec
        group.kv_cache_spec = replace(spec, num_speculative_blocks=2)
    manager: Any = KVCacheManager(config, MAX_LEN, 704, 16, max_in_flight_tokens=256)
    prompt = list(range(500))
    request = Request(
        request_id="drafts",
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=300),
        pooling_params=None,
        block_hasher=make_hasher(),
    )
    blocks, num_hit, _ = manager.get_computed_blocks(request)
    assert num_hit == 0
    first = manager.next_boundary(request, 0, 500)
    assert 0 < first < 500
    new = manager.allocate_slots(request, first, 0, blocks)
    assert [len(ids) for ids in new.get_block_ids()] == [first // 16, 3, 3, 3]
    request.num_computed_tokens = first
    num_copies = 0
    while request.num_computed_tokens < 500:
        end = manager.next_boundary(request, request.num_computed_tokens, 500)
        assert manager.allocate_slots(request, end - request.num_computed_tokens) is not None
        request.num_computed_tokens = end
        copies, held = manager.take_kv_cache_block_copies()
        assert len(copies) == 3
        assert held == []
        num_copies += len(copies)
    while request.num_tokens < 650:
        request.append_output_token_ids([7, 8])
        more = manager.allocate_slots(request, 3)
        assert not any(more.get_block_ids()[1:]), "the slots are taken once"
        request.num_computed_tokens += 2
    assert manager.take_kv_cache_block_copies() == ([], [])
    assert dict(manager._counts())["prompt"] == num_copies > 0
    assert dict(manager._counts())["followed"] == 0


def _life(engine: Engine, seed: int, num_requests: int = 24) -> None:
    """Requests with shared prefixes and later turns arrive, run, hang up and are preempted."""
    draw = Random(seed)
    told: list[tuple[list[int], int]] = []
    for _ in range(num_requests):
        shared = Random(draw.randrange(3)).choices(range(500), k=400)
        more = draw.choices(range(500, 900), k=draw.choice((1, 5, 16, 17, 90)))
        if told and draw.random() < 0.4:
            prompt = next_turn(*draw.choice(told), more)
        else:
            prompt = shared[: draw.choice((0, 16, 31, 160, 333))] + more
        max_tokens = draw.choice((1, 2, 20, 70, 150))
        if len(prompt) + max_tokens < MAX_LEN:
            priority = draw.randrange(3) if engine.has_priorities else 0
            engine.add(prompt, max_tokens, priority=priority)
            told.append((prompt, max_tokens))
        for _ in range(draw.choice((0, 1, 3, 20))):
            engine.outputs.append(_decided(engine.step()))
        if draw.random() < 0.1 and engine.scheduler.requests:
            gone = draw.choice(sorted(engine.scheduler.requests))
            engine.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
        if draw.random() < 0.1:
            engine.scheduler.reset_prefix_cache(reset_running_requests=draw.random() < 0.5)
    engine.finish()
    pool = engine.manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


SESSION_LENGTHS = [(30, 4), (48, 16), (63, 1), (64, 1), (60, 4), (100, 28), (150, 42), (16, 1)]
"""Tokens of a session's first input and of the answer to it; their sums on borders and off."""


@pytest.mark.parametrize("cls", [AsyncScheduler, Scheduler, BatchedScheduler])
@pytest.mark.parametrize(("num_prompt", "num_answer"), SESSION_LENGTHS)
def test_a_session_goes_on_from_what_its_own_tokens_wrote(
    cls: type[Scheduler], num_prompt: int, num_answer: int
) -> None:
    """A turn ends by a token of its own, while the next step is on its way."""
    engine = Engine(40, cls)
    check.attach(engine.scheduler)
    first = list(range(num_prompt))
    session = engine.add(first, 200, stop=token_at(first, num_prompt + num_answer), resumable=True)
    _until_waiting(engine, session)
    assert session.num_output_tokens == num_answer + 1
    # A request beside it uses whatever the session gave back.
    beside = list(range(500, 520))
    engine.add(beside, 3, stop=token_at(beside, 22))
    _until_waiting(engine, session)
    answer = [token_at(first, num_prompt + nth) for nth in range(num_answer)]
    second = [*first, *answer, 7, 8, 9]
    engine.add([7, 8, 9], 200, stop=token_at(second, len(second) + 5), resumable=True, at=session)
    _until_waiting(engine, session)
    assert session.num_prompt_tokens == len(second)
    # What it left in the cache is what its tokens wrote.
    engine.add([*second, 5, 6], 2)
    _until_waiting(engine, session)
    engine.scheduler.finish_requests(session.request_id, RequestStatus.FINISHED_ABORTED)
    engine.add(second[: len(first) + num_answer + 1], 2)
    engine.finish()
    assert engine.manager.block_pool.get_num_free_blocks() == 39


def _until_waiting(engine: Engine, session: Request) -> None:
    """Run until nothing does but the session, which waits for its client."""
    for _ in range(400):
        is_alone = [*engine.scheduler.requests] == [session.request_id]
        is_waiting = session.status == RequestStatus.WAITING_FOR_STREAMING_REQ
        if is_alone and is_waiting and not engine.in_flight:
            return
        engine.step()
        while engine.in_flight and not engine.scheduler.running:
            engine.scheduler.update_from_output(*engine.in_flight.popleft())
    raise AssertionError(f"the session is {session.status.name}")


def test_a_hit_is_reported_to_those_who_ask_for_all_of_it() -> None:
    engine = Engine(40, events=True)
    prompt = list(range(100))
    engine.add(prompt, 2)
    engine.finish()
    engine.manager.take_events()
    again = engine.add(prompt, 2, extra_args={"kv_cache_report_mode": "full"})
    engine.step()
    stored = [e for e in engine.manager.take_events() if isinstance(e, BlockStored)]
    hit = engine.hits[again.request_id]
    assert hit > 0
    (attention,) = [e for e in stored if e.group_idx == 0 and e.parent_block_hash is None]
    assert attention.token_ids == prompt[: hit // 16 * 16]
    states = [e for e in stored if e.group_idx and e.token_ids == prompt[hit - 16 : hit]]
    assert [e.group_idx for e in states] == [1, 2, 3]


def test_a_state_is_kept_at_each_interval_that_the_user_asks_for() -> None:
    prompt = list(range(600))
    kept = {}
    for interval in (None, 64):
        engine = Engine(200, interval=interval)
        engine.add(prompt, 2)
        engine.finish()
        for length in range(64, 600, 64):
            engine.add([*prompt[:length], 999], 1)
            engine.finish()
        kept[interval] = [engine.hits[f"request{nth}"] for nth in range(1, engine.num_added)]
    assert kept[64] == list(range(64, 600, 64))
    assert kept[None] != kept[64]


def test_the_environment_says_where_states_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(600))
    hits = {}
    # Slabs that were planned without a pool for another format keep states as they are.
    for text in ("none", "fixed:16+200", "fixed:16+200/format=int8"):
        monkeypatch.setenv(CHECKPOINTS, text)
        engine = Engine(200)
        engine.add(prompt, 2)
        engine.finish()
        engine.add([*prompt[:400], 999], 1)
        engine.finish()
        hits[text] = engine.hits["request1"]
    assert list(hits.values()) == [0, 400, 400]
    monkeypatch.setenv(CHECKPOINTS, "best")
    with pytest.raises(InvalidArgumentError, match=f"{CHECKPOINTS}='best': 'best' is no placement"):
        Engine(200)


def test_without_a_prefix_cache_no_checkpoints_are_placed() -> None:
    config = Groups.HYBRID.natural_config(40, MAX_LEN)
    groups = []
    for group in config.kv_cache_groups:
        spec: Any = group.kv_cache_spec
        if isinstance(spec, MambaSpec):
            spec = replace(spec, mamba_cache_mode="none")
        groups.append(replace(group, kv_cache_spec=spec))
    scheduler: Any = scheduler_over(
        replace(config, kv_cache_groups=groups),
        num_requests=4,
        max_model_len=MAX_LEN,
        max_num_batched_tokens=256,
        hash_block_size=16,
        enable_caching=False,
    )
    manager = scheduler.kv_cache_manager
    assert manager.has_states
    assert manager._geometry().checkpoints is None


def _decided(output: Any) -> str:
    cached = output.scheduled_cached_reqs
    new = [
        (one.req_id, one.block_ids, one.num_computed_tokens) for one in output.scheduled_new_reqs
    ]
    copies = [(c.src_block_id, c.dst_block_id) for c in output.kv_cache_block_copies or ()]
    resumed = sorted(cached.resumed_req_ids)
    tokens = output.num_scheduled_tokens
    return json.dumps([new, cached.req_ids, cached.new_block_ids, resumed, copies, tokens])


@pytest.mark.parametrize("cls", [AsyncScheduler, Scheduler, BatchedScheduler])
@pytest.mark.parametrize("num_slabs", [7, 9, 14, 60])
def test_every_request_reads_what_its_own_tokens_wrote(
    num_slabs: int, cls: type[Scheduler]
) -> None:
    for seed in range(examples(4)):
        _life(Engine(num_slabs, cls), seed)


@pytest.mark.parametrize("cls", [AsyncScheduler, Scheduler, BatchedScheduler])
@pytest.mark.parametrize("num_slabs", [7, 9, 14])
def test_who_is_preempted_for_a_higher_priority_leaves_nothing_unwritten(
    num_slabs: int, cls: type[Scheduler]
) -> None:
    """It may have been scheduled in the same step, and its blocks entered beforehand."""
    for seed in range(examples(8)):
        _life(Engine(num_slabs, cls, has_priorities=True), seed, 40)


@pytest.mark.parametrize("num_slabs", [9, 60])
def test_scheduling_in_one_call_decides_the_same(num_slabs: int) -> None:
    for seed in range(examples(4)):
        one_by_one, at_once = Engine(num_slabs), Engine(num_slabs, BatchedScheduler)
        _life(one_by_one, seed)
        _life(at_once, seed)
        assert one_by_one.outputs == at_once.outputs
        assert at_once.scheduler._decodes is not None


def test_a_prompt_that_hits_a_checkpoint_of_this_step_keeps_nobody_waiting() -> None:
    """The checkpoint is a copy of what was computed before the step."""
    engine = Engine(200, interval=64)
    prompt = list(range(650))
    engine.add(prompt, 5)
    engine.step()
    engine.add(prompt[:80] + [7] * 40, 5)
    engine.add([900 + number % 50 for number in range(40)], 5)
    output = engine.step()
    assert len(output.num_scheduled_tokens) == 3
    assert engine.hits["request1"] == 64
    engine.finish()


@pytest.mark.parametrize("cls", [AsyncScheduler, BatchedScheduler])
def test_the_same_prompt_many_times_at_once_is_computed_once(cls: type[Scheduler]) -> None:
    engine = Engine(200, cls)
    for number in range(10):
        prompt = [1000 * number + at for at in range(230)]
        first, *others = [engine.add(prompt, 4) for _ in range(4)]
        engine.finish()
        assert engine.hits[first.request_id] == 0
        for other in others:
            assert engine.hits[other.request_id] >= 128
    assert engine.hits[others[0].request_id] == 224, "that nobody leaves a prompt early is learned"


def test_nobody_waits_for_a_checkpoint_that_cannot_be_hit() -> None:
    engine = Engine(200)
    prompt = list(range(230))
    engine.add(prompt, 4)
    other = engine.add(prompt[:40] + [7] * 150, 4)
    unread = engine.add(prompt, 4, prompt_logprobs=1)
    while not engine.scheduler.running:
        engine.step()
    assert len(engine.scheduler.running) == 2, "the budget is 256 tokens a step"
    engine.finish()
    assert engine.hits[other.request_id] == engine.hits[unread.request_id] == 0


def test_who_waits_for_a_checkpoint_keeps_nobody_waiting() -> None:
    engine = Engine(200)
    prompt = list(range(200))
    first, twin = engine.add(prompt, 4), engine.add(prompt, 4)
    other = engine.add([900 + number for number in range(20)], 4)
    output = engine.step()
    assert set(output.num_scheduled_tokens) == {first.request_id, other.request_id}
    engine.finish()
    assert engine.hits[twin.request_id] > 0


def test_pairs_of_short_prompts_are_admitted_side_by_side() -> None:
    engine = Engine(200)
    pairs = [[1000 * number + at for at in range(33)] for number in range(5)]
    firsts, twins = zip(
        *((engine.add(prompt, 8), engine.add(prompt, 8)) for prompt in pairs), strict=True
    )
    output = engine.step()
    assert set(output.num_scheduled_tokens) == {first.request_id for first in firsts}
    output = engine.step()
    assert {new.req_id for new in output.scheduled_new_reqs} == {twin.request_id for twin in twins}
    assert {engine.hits[twin.request_id] for twin in twins} == {32}
    engine.finish()


def test_nobody_waits_for_who_has_more_to_compute() -> None:
    engine = Engine(200, chunk=64)
    prompt = list(range(650))
    engine.add(prompt[:400], 4)
    engine.finish()
    unread = engine.add(prompt, 4, prompt_logprobs=1)
    engine.step()
    other = engine.add(prompt, 4)
    output = engine.step()
    assert set(output.num_scheduled_tokens) == {unread.request_id, other.request_id}
    assert engine.hits[other.request_id] > 300
    engine.finish()


def test_who_does_not_read_the_cache_waits_for_nobody() -> None:
    engine = Engine(30, chunk=64)
    prompt = list(range(600))
    engine.add(prompt, 4)
    engine.step()
    unread = engine.add(prompt, 4, prompt_logprobs=1)
    for _ in range(3):
        assert not engine.manager.waits_for_checkpoint(unread)
        engine.step()
    engine.finish()
    assert engine.hits[unread.request_id] == 0


@pytest.mark.parametrize("cls", [AsyncScheduler, Scheduler, BatchedScheduler])
def test_blocks_of_a_step_that_a_request_was_taken_out_of_are_not_found(
    cls: type[Scheduler],
) -> None:
    """It is scheduled, and then preempted for one of a higher priority behind it."""
    taken_out = 0
    for num_prompt in range(30, 46):
        # A slab for attention, and three states of each.
        engine = Engine(8, cls, has_priorities=True, chunk=16)
        # Else the second one waits for what the first still needs, and nobody is preempted.
        engine.scheduler.scheduler_reserve_full_isl = False
        victim = engine.add(list(range(600)), 4, priority=1)
        engine.step()
        engine.add([900 + number for number in range(num_prompt)], 60)

        def noted_free(request: Request, manager: Any, free: Any) -> None:
            nonlocal taken_out
            ids = manager.get_block_ids(request.request_id)[0]
            num_computed = request.num_computed_tokens
            free(request)
            beyond = ids[-(-num_computed // 16) :]
            taken_out += bool(beyond) and request.num_preemptions == 0
            pool = manager.block_pool.pools[0]
            hashes = {block.block_id: block.block_hash for block in pool}
            assert not any(hashes[block] for block in beyond), f"{num_computed} are computed"

        manager = engine.manager
        manager.free = partial(noted_free, manager=manager, free=manager.free)
        while not victim.num_preemptions:
            engine.step()
        engine.finish()
    assert taken_out > 0
