"""A prompt starts only if it ends sooner so, and lets short ones go before the rest of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import Level
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from .served import Served
from .test_fake_worker import MIXES

BLOCK = 4
BUDGET = 48


@pytest.fixture(autouse=True)
def natural() -> Iterator[None]:
    install.install(Level.NATURAL)
    yield
    install.uninstall()


@pytest.mark.parametrize(
    ("lengths", "threshold", "first"),
    [
        ((32, 32), 0, (32, 0)),
        ((32, 16, 8), 0, (32, 16, 0)),
        ((8, 60), 0, (8, 40)),
        ((40, 60), 0, (40, 0)),
        ((96,), 0, (48,)),
        ((32, 40), 16, (16, 16)),
    ],
    ids=["cut", "whole", "a step sooner", "no step sooner", "alone", "longest chunk"],
)
def test_a_prompt_that_is_cut_starts_if_it_ends_sooner(
    lengths: tuple[int, ...], threshold: int, first: tuple[int, ...]
) -> None:
    scheduler = scheduler_of()
    scheduler.scheduler_config.long_prefill_token_threshold = threshold
    assert chunks_of(scheduler, lengths) == first


@pytest.mark.parametrize(("num_generating", "first"), [(3, (32, 0)), (4, (32, 16))])
def test_a_prompt_that_is_cut_starts_where_most_requests_generate(
    num_generating: int, first: tuple[int, ...]
) -> None:
    scheduler = scheduler_of()
    chunks_of(scheduler, (BLOCK,) * num_generating, 10)
    assert len(scheduler.running) == num_generating
    assert chunks_of(scheduler, (32, 32)) == first


@pytest.mark.parametrize(("step_tokens", "first"), [(16, (32, 0)), (24, (32, 16))])
def test_a_prompt_that_is_cut_starts_where_those_behind_it_lose_more(
    step_tokens: int, first: tuple[int, ...]
) -> None:
    scheduler = scheduler_of()
    scheduler.kv_cache_manager.step_tokens = step_tokens
    assert chunks_of(scheduler, (32, 32, 8, 8))[:2] == first


@pytest.mark.parametrize(
    ("lengths", "first"),
    [
        ((96, 5), (40, 5)),
        ((96, 2, 4, 3), (40, 2, 4, 0)),
        ((96, 7), (48, 0)),
        ((96, 96, 5), (48, 0, 0)),
        ((40, 5), (40, 5)),
    ],
    ids=["short", "as many as fit", "not short", "behind one that is not", "whole"],
)
def test_a_long_prompt_lets_short_ones_behind_it_end(
    lengths: tuple[int, ...], first: tuple[int, ...]
) -> None:
    assert chunks_of(scheduler_of(), lengths) == first


def test_a_long_prompt_under_way_lets_those_end_that_join_or_go_on() -> None:
    scheduler = scheduler_of()
    assert chunks_of(scheduler, (300,)) == (48,)
    assert chunks_of(scheduler, (5,), 1) == (5,)
    assert scheduler.schedule().num_scheduled_tokens == {"0": 48}, "the other one has its answer"


def test_a_long_prompt_leaves_no_seat_free_for_nobody() -> None:
    scheduler = scheduler_of()
    scheduler.max_num_active_reqs = 1
    assert chunks_of(scheduler, (300, 5)) == (48, 0)
    assert chunks_of(scheduler, (5,), 2) == (0,)
    assert scheduler.running[0].num_computed_tokens == 96


def test_a_prompt_is_short_by_what_is_not_cached() -> None:
    scheduler = scheduler_of()
    engine = Served(scheduler, scheduler.kv_cache_config, make_hasher(BLOCK))
    engine.add("first", list(range(40)), [7])
    while scheduler.requests:
        engine.step()
    engine.add("long", list(range(100, 400)), [7])
    engine.step()
    engine.add("again", [*range(40), 900, 901], [7])
    chunks: dict[str, int] = {}
    engine.step(lambda scheduled: chunks.update(scheduled.num_scheduled_tokens))
    assert chunks == {"long": 44, "again": 42 - engine.num_hit_tokens["again"]}


def test_by_priority_a_prompt_leaves_nothing_to_those_behind_it() -> None:
    scheduler = scheduler_of()
    scheduler.policy = SchedulingPolicy.PRIORITY
    assert chunks_of(scheduler, (96, 5)) == (48, 0)


def scheduler_of() -> Any:
    sizes: Any = {"num_requests": 8, "max_model_len": 160, "max_num_batched_tokens": BUDGET}
    config = MIXES["full-state-inside"].config(Level.NATURAL)
    return scheduler_over(config, hash_block_size=BLOCK, scheduler_cls=Scheduler, **sizes)


def chunks_of(scheduler: Any, lengths: tuple[int, ...], base: int = 0) -> tuple[int, ...]:
    """Add prompts of these lengths and schedule a step; return their chunks."""
    names = [str(base + number) for number in range(len(lengths))]
    for name, length in zip(names, lengths, strict=True):
        prompt = [100 * int(name) + at for at in range(length)]
        sampling = SamplingParams(max_tokens=3, ignore_eos=True)
        request = Request(name, prompt, sampling, None, block_hasher=make_hasher(BLOCK))
        scheduler.add_request(request)
    chunks = scheduler.schedule().num_scheduled_tokens
    return tuple(chunks.get(name, 0) for name in names)
