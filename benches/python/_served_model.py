"""vLLM's scheduler over what vLLM itself plans for a model: stock, and at level ``natural``.

No weights and no GPU: outputs are prescribed, not computed.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import gcd
from typing import Any

import _test_folders  # noqa: F401
from hybrid_blocks.model import Model
from hybrid_blocks.plan import Deployment
from hybrid_blocks.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.vllm import installation
from hybrid_blocks.vllm.level import VARIABLE, Level
from natural.engine import Engine
from plan_oracle import Oracle
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request


class Side(StrEnum):
    """Whose plan and whose manager run."""

    STOCK = "stock"
    NATURAL = "natural"


@dataclass(frozen=True)
class Case:
    """A model in ``memory_bytes`` that runs at most ``num_requests`` requests.

    ``retention`` is vLLM's ``--prefix-cache-retention-interval``, of the stock side alone.
    """

    model: Model
    memory_bytes: int
    deployment: Deployment
    num_requests: int
    retention: int | None = 0


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
        self.scheduler.add_request(
            Request(
                request_id=id_,
                prompt_token_ids=prompt,
                sampling_params=sampling,
                pooling_params=None,
                block_hasher=self.hasher,
            )
        )

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
        self.scheduler.update_from_output(
            scheduled,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={id_: index for index, id_ in enumerate(ids)},
                sampled_token_ids=[self._sampled(id_) for id_ in ids],
            ),
        )

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


@contextmanager
def serving(side: Side, case: Case) -> Iterator[Served]:
    """Plan a model with vLLM's own functions, and make its scheduler."""
    with _level(Level.NATURAL if side is Side.NATURAL else Level.OFF):
        config = _plan(side, case)
        sizes = [group.kv_cache_spec.block_size for group in config.kv_cache_groups]
        length = case.deployment.length(case.model)
        scheduler = scheduler_over(
            config,
            num_requests=case.num_requests,
            max_model_len=length,
            max_num_batched_tokens=case.deployment.max_num_batched_tokens,
            hash_block_size=gcd(*sizes),
            scheduler_cls=Scheduler,
            num_draft_tokens=case.deployment.num_speculative_tokens,
        )
        _check(side, scheduler)
        yield Served(scheduler, config, make_hasher(gcd(*sizes)))


def _plan(side: Side, case: Case) -> KVCacheConfig:
    if side is Side.NATURAL:
        return Engine(case.model, case.deployment, case.memory_bytes).scheduler_config()
    oracle = Oracle(case.model, case.deployment, case.memory_bytes)
    config: KVCacheConfig = generate_scheduler_kv_cache_config(oracle.configs)
    return replace(config, prefix_cache_retention_interval=case.retention)


class OtherLevelError(RuntimeError):
    """A model is refused at level ``natural``, on this platform at least."""


def _check(side: Side, scheduler: Any) -> None:
    level = getattr(scheduler.kv_cache_manager, "hybrid_blocks_level", Level.OFF)
    if (level is Level.NATURAL) is not (side is Side.NATURAL):
        raise OtherLevelError(f"the {side} side runs at level {level}")


@contextmanager
def _level(level: Level) -> Iterator[None]:
    """Run at a level, and then as before."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = level
    if level is not Level.OFF:
        installation.install(level)
    try:
        yield
    finally:
        if level is not Level.OFF:
            installation.uninstall()
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
