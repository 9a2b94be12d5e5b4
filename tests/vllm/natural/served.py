"""vLLM's scheduler with outputs that are prescribed, not computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request


@dataclass
class Served:
    """A scheduler with prescribed outputs, in the loop of a synchronous engine."""

    scheduler: Any
    config: KVCacheConfig
    hasher: Callable[[Request], Any]
    acceptance: float | None = None
    """Share of drafts that are right, drawn by request and place; None where nothing is drafted."""
    num_hit_tokens: dict[str, int] = field(default_factory=dict)
    """Tokens found in the cache, by request."""
    _outputs: dict[str, Sequence[int]] = field(default_factory=dict)
    _drafts: dict[str, list[int]] = field(default_factory=dict)

    def add(self, id_: str, prompt: list[int], outputs: Sequence[int]) -> None:
        """Add a request that generates ``outputs``."""
        self._outputs[id_] = outputs
        if self.acceptance is not None:
            draws = np.random.default_rng(crc32(id_.encode())).random(len(outputs))
            drafts = np.array(outputs) + (draws >= self.acceptance)
            self._drafts[id_] = [*drafts.tolist(), *[0] * self.scheduler.num_spec_tokens]
        sampling = SamplingParams(max_tokens=len(outputs), ignore_eos=True)
        request = Request(id_, prompt, sampling, None, block_hasher=self.hasher)
        self.scheduler.add_request(request)

    def is_known(self, id_: str) -> bool:
        """Whether a request waits or runs."""
        return id_ in self.scheduler.requests

    def step(self, watch: Callable[[SchedulerOutput], object] = lambda _: None) -> None:
        """Schedule and give the outputs; ``watch`` sees the scheduled step before that."""
        scheduled = self.scheduler.schedule()
        for new in scheduled.scheduled_new_reqs:
            self.num_hit_tokens.setdefault(new.req_id, new.num_computed_tokens)
        watch(scheduled)
        ids = list(scheduled.num_scheduled_tokens)
        places = {id_: at for at, id_ in enumerate(ids)}
        drafted = scheduled.scheduled_spec_decode_tokens
        sampled = [self._sampled(id_, drafted.get(id_, ())) for id_ in ids]
        output = ModelRunnerOutput(ids, places, sampled_token_ids=sampled)
        self.scheduler.update_from_output(scheduled, output)
        if self.acceptance is not None:
            ids = [id_ for id_ in ids if self.is_known(id_)]
            next_ = DraftTokenIds(ids, [self._next_drafts(id_) for id_ in ids])
            self.scheduler.update_draft_token_ids(next_)

    def _sampled(self, id_: str, drafts: Sequence[int]) -> list[int]:
        """Return the output up to the first draft that is wrong, and the token in its place."""
        request = self.scheduler.requests[id_]
        if request.num_computed_tokens < request.num_tokens:
            return []
        first = request.num_output_tokens
        outputs = self._outputs[id_][first : first + len(drafts) + 1]
        pairs = enumerate(zip(drafts, outputs, strict=False))
        accepted = next((at for at, (draft, right) in pairs if draft != right), len(drafts))
        return [int(token) for token in outputs[: accepted + 1]]

    def _next_drafts(self, id_: str) -> list[int]:
        first = self.scheduler.requests[id_].num_output_tokens
        return self._drafts[id_][first : first + self.scheduler.num_spec_tokens]

    @property
    def reserved_blocks(self) -> int:
        """Blocks, or slabs, that hold something of a request that runs."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return self.config.num_blocks - 1 - int(pool.get_num_free_blocks())
