"""A drafter of several modules computes the last tokens of a prompt in one chunk."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.vllm.level import Level
from installed import installed
from vllm.config import SpeculativeConfig, VllmConfig
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


def _configure(drops_block: bool, config: VllmConfig) -> None:
    assert config.speculative_config is not None
    config.speculative_config.disable_eagle_block_drop = not drops_block


@pytest.mark.parametrize("interval", [None, 16, 32])
@pytest.mark.parametrize("inside", [None, 1])
@pytest.mark.parametrize("drops_block", [True, False])
@pytest.mark.parametrize("budget", [64, 203])
@pytest.mark.parametrize("length", range(90, 106))
def test_a_prompt_ends_wherever_states_are_kept(
    length: int, budget: int, drops_block: bool, inside: int | None, interval: int | None
) -> None:
    config: Any = MIXES["full-state-drafter"].config(Level.NATURAL)
    kept = {"checkpoint_interval": interval, "prefill_checkpoint_alignment": inside}
    config = replace(config, **kept)
    sizes: Any = {"num_requests": 8, "max_model_len": 160, "max_num_batched_tokens": budget}
    drafts: Any = {"num_draft_tokens": NUM_DRAFTS, "draft_method": "eagle"}
    sizes |= {"hash_block_size": BLOCK, "scheduler_cls": AsyncScheduler}
    sizes["configure"] = partial(_configure, drops_block)
    scheduler: Any = scheduler_over(config, **sizes, **drafts)
    assert scheduler.num_prefill_lookahead == NUM_DRAFTS
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    hasher = make_hasher(BLOCK, *filter(None, [scheduler.num_hash_lookahead_tokens]))
    request = Request("request", list(range(length)), sampling, None, block_hasher=hasher)
    scheduler.add_request(request)
    while request.num_computed_tokens < length:
        assert scheduler.schedule().num_scheduled_tokens.get("request", 0) > 0
