"""A prompt starts with the rest of a step's budget only if it ends sooner so."""

from collections.abc import Iterator
from typing import Any

import pytest
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import Level
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

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
