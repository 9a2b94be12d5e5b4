"""A drafter of several modules computes the last tokens of a prompt in one chunk."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.vllm.level import Level
from installed import installed
from vllm.config import SpeculativeConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request

from .test_fake_worker import MIXES

BLOCK = 4
NUM_DRAFTS = 3


@pytest.fixture(autouse=True)
def drafter_of_several_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(SpeculativeConfig, "use_multi_module_mtp", lambda _self: True)
    with installed(Level.NATURAL):
        yield


@pytest.mark.parametrize("interval", [None, 16, 32])
@pytest.mark.parametrize("length", range(90, 106))
def test_a_prompt_ends_wherever_states_are_kept(interval: int | None, length: int) -> None:
    config: Any = MIXES["full-state-drafter"].config(Level.NATURAL)
    config = replace(config, checkpoint_interval=interval)
    sizes: Any = {"num_requests": 8, "max_model_len": 160, "max_num_batched_tokens": 203}
    drafts: Any = {"num_draft_tokens": NUM_DRAFTS, "draft_method": "eagle"}
    sizes |= {"hash_block_size": BLOCK, "scheduler_cls": AsyncScheduler}
    scheduler: Any = scheduler_over(config, **sizes, **drafts)
    assert scheduler.num_prefill_lookahead == NUM_DRAFTS
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    hasher = make_hasher(BLOCK, scheduler.num_hash_lookahead_tokens)
    request = Request("request", list(range(length)), sampling, None, block_hasher=hasher)
    scheduler.add_request(request)
    while request.num_computed_tokens < length:
        assert scheduler.schedule().num_scheduled_tokens.get("request", 0) > 0
