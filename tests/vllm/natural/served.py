"""vLLM's scheduler with outputs that are prescribed, not computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request


@dataclass
class Served:
    """A scheduler with prescribed outputs, in the loop of a synchronous engine."""

    scheduler: Any
    config: KVCacheConfig
    hasher: Callable[[Request], Any]
    num_hit_tokens: dict[str, int] = field(default_factory=dict)
    """Tokens found in the cache, by request."""
    _outputs: dict[str, Sequence[int]] = field(default_factory=dict)

    def add(self, id_: str, prompt: list[int], outputs: Sequence[int]) -> None:
        """Add a request that generates ``outputs``."""
        self._outputs[id_] = outputs
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
        sampled = [self._sampled(id_) for id_ in ids]
        output = ModelRunnerOutput(ids, places, sampled_token_ids=sampled)
        self.scheduler.update_from_output(scheduled, output)

    def _sampled(self, id_: str) -> list[int]:
        request = self.scheduler.requests[id_]
        if request.num_computed_tokens < request.num_tokens:
            return []
        return [int(self._outputs[id_][request.num_output_tokens])]

    @property
    def reserved_blocks(self) -> int:
        """Blocks, or slabs, that hold something of a request that runs."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return self.config.num_blocks - 1 - int(pool.get_num_free_blocks())
