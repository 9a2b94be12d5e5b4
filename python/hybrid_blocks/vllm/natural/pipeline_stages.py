"""Pipeline stages: all plan alike, from what each of them holds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

import torch
from vllm.config import VllmConfig
from vllm.distributed import parallel_state
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec

from hybrid_blocks.vllm.natural.groups import are_natural, of_worker

Plan = TypeVar("Plan")
Held = TypeVar("Held")

_STAGE_OF: ContextVar[Mapping[str, int]] = ContextVar("_STAGE_OF")


def stage_of() -> Mapping[str, int]:
    """Return the stage of each layer that vLLM plans for; nothing where one worker has them all."""
    return _STAGE_OF.get({})


def knowing_stages(plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """Return a function of vLLM's that gets the layers of all workers, and lets us know of them."""

    @wraps(plan)
    def planned(*args: Any, **kwargs: Any) -> Plan:
        specs: Any = kwargs.get("kv_cache_specs", args[1] if len(args) > 1 else ())
        with _workers(specs):
            return plan(*args, **kwargs)

    return planned


def keeping_all(project: Callable[..., list[KVCacheGroupSpec]]) -> Callable[..., Any]:
    """Return vLLM's function that cuts groups down to a worker's layers.

    Groups of level ``natural`` remember the layers of all stages.
    """

    @wraps(project)
    def projected(
        groups: list[KVCacheGroupSpec], specs: dict[str, KVCacheSpec]
    ) -> list[KVCacheGroupSpec]:
        return of_worker(groups, specs) if are_natural(groups) else project(groups, specs)

    return projected


@contextmanager
def _workers(specs: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Tell stages apart: the workers of one hold the same layers."""
    stages = list(dict.fromkeys(tuple(held) for held in specs))
    token = _STAGE_OF.set({name: stage for stage, held in enumerate(stages) for name in held})
    try:
        yield
    finally:
        _STAGE_OF.reset(token)


def gathered(vllm_config: VllmConfig, own: Held) -> list[Held]:
    """Return what the workers of all stages hold, in the order of stages. All of them must ask."""
    num_stages = vllm_config.parallel_config.pipeline_parallel_size
    has_groups: bool = parallel_state.model_parallel_is_initialized()  # type: ignore[no-untyped-call]
    if num_stages == 1 or not has_groups:
        return [own]
    group = parallel_state.get_pp_group()
    held: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(held, own, group=group.cpu_group)
    return held
