"""vLLM's schedulers over the manager of level natural, with a worker that reads its blocks."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.metrics import ENDS
from hybrid_blocks.tools.profile.engine import Groups, make_hasher, make_scheduler, scheduler_over
from hybrid_blocks.vllm import check
from hybrid_blocks.vllm.level import CHECKPOINTS, EVENTS, Level
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager
from hybrid_blocks.vllm.scheduler.one_call import AsyncScheduler as BatchedScheduler
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import BlockStored
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.request import Request, RequestStatus

from .fake_worker import VOCABULARY, Truth
from .fake_worker_engine import FakeEngine, make_engine

pytestmark = pytest.mark.usefixtures("natural_level")

BLOCKS_PER_SLAB = 528 // 16
MAX_LEN = 700


class HybridEngine(FakeEngine):
    """An engine that checks the books of the attention's pool after each step."""

    @property
    def manager(self) -> Any:
        return self.scheduler.kv_cache_manager

    def step(self) -> SchedulerOutput:
        output = super().step()
        self.manager.block_pool.pools[0].check_integrity()
        return output

    def counts(self) -> dict[str, int]:
        return dict(self.manager._counts())


def engine_of(
    num_slabs: int,
    cls: type[Scheduler] = AsyncScheduler,
    *,
    events: bool = False,
    interval: int | None = None,
    alignment: int | None = None,
    has_priorities: bool = False,
    chunk: int = 0,
) -> HybridEngine:
    """Return a scheduler over slabs of a hybrid model, and a worker that reads its blocks."""

    def configure(config: Any) -> None:
        if events:
            # The test takes the events from the manager: no socket on a port that all share.
            config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        if has_priorities:
            config.scheduler_config.policy = "priority"
        config.scheduler_config.long_prefill_token_threshold = chunk

    config = Groups.HYBRID.natural_config(num_slabs, MAX_LEN)
    sizes: Any = {"num_requests": 16, "max_model_len": MAX_LEN, "max_num_batched_tokens": 256}
    sizes |= {"hash_block_size": 16, "scheduler_cls": cls, "configure": configure}
    config = replace(config, checkpoint_interval=interval, prefill_checkpoint_alignment=alignment)
    engine: HybridEngine = make_engine(config, Random(0), HybridEngine, **sizes)
    return engine


def until_waiting(engine: FakeEngine, session: Request) -> None:
    """Run until the session alone is left, and waits for its client."""
    for _ in range(1000):
        is_alone = [*engine.scheduler.requests] == [session.request_id]
        is_waiting = session.status == RequestStatus.WAITING_FOR_STREAMING_REQ
        if is_alone and is_waiting and not engine._in_flight:
            return
        engine.step()
    raise AssertionError(f"the session is {session.status.name}")


def end_turn(engine: FakeEngine, session: Request, num_output_tokens: int) -> None:
    """Let a session's turn end by the token after its first ``num_output_tokens``."""
    while session.num_output_tokens < num_output_tokens:
        engine.step()
    assert session.sampling_params is not None
    session.sampling_params.stop_token_ids = [*range(VOCABULARY)]
    until_waiting(engine, session)


def test_the_configuration_decides_which_manager_there_is() -> None:
    engine = engine_of(20)
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
    engine = engine_of(20)
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
    engine = engine_of(20)
    engine.add(list(range(40)), 10)
    first = engine.step()
    slab = first.scheduled_new_reqs[0].block_ids[0][0] // BLOCKS_PER_SLAB
    assert first.new_block_ids_to_zero == [slab]
    engine.add(list(range(100, 140)), 10)
    assert engine.step().new_block_ids_to_zero is None, "the second shares the first one's slab"


def test_vllms_first_cpu_runner_is_told_the_blocks_of_the_slab() -> None:
    engine = engine_of(20)
    engine.manager.kv_cache_config.zeroes_single_blocks = True
    engine.add(list(range(40)), 10)
    output = engine.scheduler.schedule()
    (table, *_) = output.scheduled_new_reqs[0].block_ids
    first = table[0] // BLOCKS_PER_SLAB * BLOCKS_PER_SLAB
    assert output.new_block_ids_to_zero == list(range(first, first + BLOCKS_PER_SLAB))


def test_the_next_turn_goes_on_from_the_answer() -> None:
    engine = engine_of(40)
    first = engine.add(list(range(100)), 200)
    engine.finish()
    following = engine.add([*first.all_token_ids, *range(500, 520)], 4)
    engine.finish()
    assert engine.hits[following.request_id] >= 299 // 64 * 64
    counts = engine.counts()
    assert counts["followed"] >= 9
    assert counts["superseded"] >= 6, "one copy follows, not one a border"


def test_a_preempted_request_goes_on_from_a_copy() -> None:
    engine = engine_of(40)
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
    engine = engine_of(40)
    engine.add(list(range(300)), 20)
    engine.finish()
    pools = engine.manager.block_pool.pools
    assert any(pool.num_owned_slabs for pool in pools)
    assert engine.scheduler.reset_prefix_cache()
    assert [pool.num_owned_slabs for pool in pools] == [0, 0]


def test_figures_say_where_slabs_and_states_are() -> None:
    engine = engine_of(40)
    engine.add(list(range(300)), 200)
    for _ in range(120):
        engine.step()
    samples = {(it.family, *it.labels.values()): it.value for it in engine.manager._samples()}
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
    sizes: Any = {"num_requests": 4, "num_blocks": 400, "max_model_len": MAX_LEN}
    scheduler: Any = make_scheduler(groups, is_natural=True, **sizes)
    hasher = make_hasher()
    hits = []
    for number in range(3):
        sampling = SamplingParams(max_tokens=1)
        request = Request(str(number), list(range(100)), sampling, None, block_hasher=hasher)
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
    sampling = SamplingParams(max_tokens=300)
    request = Request("drafts", prompt, sampling, None, block_hasher=make_hasher())
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
        assert {block.block_id for block in held} == {end for copy in copies for end in copy}
        manager.block_pool.free_blocks(held)
        num_copies += len(copies)
    while request.num_tokens < 650:
        request.append_output_token_ids([7, 8])
        more = manager.allocate_slots(request, 3)
        assert not any(more.get_block_ids()[1:]), "the slots are taken once"
        request.num_computed_tokens += 2
    assert manager.take_kv_cache_block_copies() == ([], [])
    assert dict(manager._counts())["prompt"] == num_copies > 0
    assert dict(manager._counts())["followed"] == 0


SESSION_LENGTHS = [(30, 4), (48, 16), (63, 1), (64, 1), (60, 4), (100, 28), (150, 42), (16, 1)]
"""Tokens of a session's first input and of the answer to it; their sums on borders and off."""


@pytest.mark.parametrize("cls", [AsyncScheduler, Scheduler, BatchedScheduler])
@pytest.mark.parametrize(("num_prompt", "num_answer"), SESSION_LENGTHS)
def test_a_session_goes_on_from_what_its_own_tokens_wrote(
    cls: type[Scheduler], num_prompt: int, num_answer: int
) -> None:
    """A turn ends by a token of its own, while the next step is on its way."""
    engine = engine_of(40, cls)
    check.attach(engine.scheduler)
    first = list(range(num_prompt))
    session = engine.add(first, 200, resumable=True)
    end_turn(engine, session, num_answer)
    assert session.num_output_tokens == num_answer + 1
    # A request beside it uses whatever the session gave back.
    engine.add(list(range(500, 520)), 3)
    until_waiting(engine, session)
    truth = Truth(first)
    second = [*first, *(truth[num_prompt + nth] for nth in range(num_answer)), 7, 8, 9]
    engine.add([7, 8, 9], 200, resumable=True, at=session)
    end_turn(engine, session, 5)
    assert session.num_prompt_tokens == len(second)
    # The session's blocks in the cache are what its tokens wrote.
    engine.add([*second, 5, 6], 2)
    until_waiting(engine, session)
    engine.abort(session)
    engine.add(second[: len(first) + num_answer + 1], 2)
    engine.finish()
    assert engine.manager.block_pool.get_num_free_blocks() == 39


@pytest.mark.parametrize("mode", ["all", "usable"])
def test_a_hit_is_reported_to_those_who_ask(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVENTS, mode)
    engine = engine_of(40, events=True)
    prompt = list(range(100))
    engine.add(prompt, 2)
    engine.finish()
    engine.manager.take_events()
    report = {"extra_args": {"kv_cache_report_mode": "full"}}
    again = engine.add(prompt, 2, sampling=report)
    engine.step()
    stored = [e for e in engine.manager.take_events() if isinstance(e, BlockStored)]
    hit = engine.hits[again.request_id]
    assert hit > 0
    (attention,) = [e for e in stored if e.group_idx == 0 and e.parent_block_hash is None]
    assert attention.token_ids == prompt[: hit // 16 * 16]
    states = [e for e in stored if e.group_idx and e.token_ids == prompt[hit - 16 : hit]]
    assert [e.group_idx for e in states] == [1, 2, 3]


@pytest.mark.parametrize("alignment", [None, 1])
def test_each_state_is_told_with_the_request_that_leaves_it(alignment: int | None) -> None:
    engine = engine_of(200, events=True, interval=64, alignment=alignment)
    manager: Any = engine.manager
    take, events = manager.take_events, list[Any]()

    def note() -> list[Any]:
        taken = list(take())
        events.extend(taken)
        return taken

    # The scheduler takes events in its steps, and publishes them.
    manager.take_events = note
    prompts = [list(range(start, start + 200)) for start in (0, 300, 600)]
    # The second request ends with the step that keeps its states.
    for prompt, num_output_tokens in zip(prompts, (5, 1, 2), strict=True):
        engine.add(prompt, num_output_tokens)
    engine.finish()
    manager.take_events()
    stored = [event for event in events if isinstance(event, BlockStored)]
    told = [(event.group_idx, event.token_ids) for event in stored if event.group_idx]
    ends = [(prompt, length) for prompt in prompts for length in (64, 128, 192)]
    for prompt, length in ends:
        for group in (1, 2, 3):
            assert (group, prompt[length - 16 : length]) in told
    assert all(any(tokens[-1] in prompt for prompt in prompts) for _, tokens in told)
    assert (engine.worker.num_checkpoints > 0) == (alignment is not None)


def test_a_state_is_kept_at_each_interval_that_the_user_asks_for() -> None:
    prompt = list(range(600))
    kept = {}
    for interval in (None, 64):
        engine = engine_of(200, interval=interval)
        engine.add(prompt, 2)
        engine.finish()
        for length in range(64, 600, 64):
            engine.add([*prompt[:length], 999], 1)
            engine.finish()
        kept[interval] = [*engine.hits.values()][1:]
    assert kept[64] == list(range(64, 600, 64))
    assert kept[None] != kept[64]


def test_the_environment_says_where_states_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(600))
    hits = {}
    # Slabs that were planned without a pool for another format keep states as they are.
    for text in ("none", "fixed:16+200", "fixed:16+200/format=int8"):
        monkeypatch.setenv(CHECKPOINTS, text)
        engine = engine_of(200)
        engine.add(prompt, 2)
        engine.finish()
        again = engine.add([*prompt[:400], 999], 1)
        engine.finish()
        hits[text] = engine.hits[again.request_id]
    assert list(hits.values()) == [0, 400, 400]
    monkeypatch.setenv(CHECKPOINTS, "best")
    with pytest.raises(InvalidArgumentError, match=f"{CHECKPOINTS}='best': 'best' is no placement"):
        engine_of(200)


def test_without_a_prefix_cache_no_checkpoints_are_placed() -> None:
    config = Groups.HYBRID.natural_config(40, MAX_LEN)
    groups = []
    for group in config.kv_cache_groups:
        spec: Any = group.kv_cache_spec
        if isinstance(spec, MambaSpec):
            spec = replace(spec, mamba_cache_mode="none")
        groups.append(replace(group, kv_cache_spec=spec))
    config = replace(config, kv_cache_groups=groups)
    sizes: Any = {"num_requests": 4, "max_model_len": MAX_LEN, "max_num_batched_tokens": 256}
    scheduler: Any = scheduler_over(config, hash_block_size=16, enable_caching=False, **sizes)
    manager = scheduler.kv_cache_manager
    assert manager.has_states
    assert manager._geometry().checkpoints is None


@pytest.mark.parametrize("cls", [AsyncScheduler, BatchedScheduler])
def test_the_same_prompt_many_times_at_once_is_computed_once(cls: type[Scheduler]) -> None:
    engine = engine_of(200, cls)
    for number in range(10):
        prompt = [1000 * number + at for at in range(230)]
        first, *others = [engine.add(prompt, 4) for _ in range(4)]
        engine.finish()
        assert engine.hits[first.request_id] == 0
        for other in others:
            assert engine.hits[other.request_id] >= 128
    assert engine.hits[others[0].request_id] == 224, "that nobody leaves a prompt early is learned"


def test_who_does_not_read_the_cache_waits_for_nobody() -> None:
    engine = engine_of(30, chunk=64)
    prompt = list(range(600))
    engine.add(prompt, 4)
    engine.step()
    unread = engine.add(prompt, 4, sampling={"prompt_logprobs": 1})
    for _ in range(3):
        assert not engine.manager.waits_for_checkpoint(unread)
        engine.step()
    engine.finish()
    assert engine.hits[unread.request_id] == 0
