"""The configurations that vLLM's tests make by hand, laid out in slabs as level ``natural``'s own.

vLLM's tests give their managers and schedulers configurations that no planner made, so level
``natural`` would leave them to level ``manager``. Here each slab holds one block of any group, as
vLLM's own pages do: counts and ids of blocks mean to a test what they mean to vLLM. States that
tests lay out by hand have several blocks a request, which level ``natural`` refuses: they stay.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, cast

from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.natural.groups import SlabGroupSpec
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager
from hybrid_blocks.vllm.specs import AT_NATURAL, is_state
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig

_SAME = "_over_slabs"
_ABOUT = ("hash_block_size", "dcp_world_size", "pcp_world_size", "metrics_collector")


class Reached:
    """Whether a test's blocks lay in slabs."""

    it = False

    def clear(self) -> None:
        """Forget that earlier tests reached slabs."""
        self.it = False


def over_slabs(config: KVCacheConfig) -> KVCacheConfig:
    """Return the configuration in slabs of one block; itself where level natural has no such."""
    if isinstance(config, NaturalKVCacheConfig) or not _can(config):
        return config
    if (known := vars(config).get(_SAME)) is not None:
        return cast("KVCacheConfig", known)
    groups: list[Any] = [
        SlabGroupSpec(**{field.name: getattr(group, field.name) for field in fields(group)})
        for group in config.kv_cache_groups
    ]
    given = {field.name: getattr(config, field.name) for field in fields(config)}
    interval = config.prefix_cache_retention_interval
    given |= {
        "kv_cache_groups": groups,
        "prefix_cache_retention_interval": None if interval is None else 0,
    }
    slabbed = NaturalKVCacheConfig(
        **given, pools=(0,) * len(groups), blocks_per_slab=(1,), checkpoint_interval=interval
    )
    vars(config)[_SAME] = slabbed
    return slabbed


def _keep(config: KVCacheConfig) -> None:
    """Let a configuration stay as it is, also where the scheduler hands it to its manager."""
    vars(config)[_SAME] = config


def _can(config: KVCacheConfig) -> bool:
    """Whether all groups are attention in blocks of one size, as level natural plans it."""
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    are_served = (type(spec) in AT_NATURAL and not is_state(spec) for spec in specs)
    return all(are_served) and len({spec.block_size for spec in specs}) == 1


def swap() -> Reached:
    """Let each manager and scheduler that a test makes by hand have slabs."""
    reached = Reached()

    def slabbed(kwargs: dict[str, Any], **about: Any) -> dict[str, Any]:
        given = kwargs["kv_cache_config"]
        config = over_slabs(given)
        if config is given or NaturalKVCacheManager.unsupported_reason(config, **about) is not None:
            return kwargs
        reached.it = True
        return kwargs | {"kv_cache_config": config}

    def of_manager(kwargs: dict[str, Any]) -> dict[str, Any]:
        kwargs = slabbed(kwargs, **{name: kwargs[name] for name in _ABOUT if name in kwargs})
        config = kwargs["kv_cache_config"]
        if isinstance(config, NaturalKVCacheConfig):
            # An engine starts only where its longest request fits, and hits are cut to keep it so.
            kwargs["max_model_len"] = min(kwargs["max_model_len"], _fitting(config))
        return kwargs

    def of_scheduler(kwargs: dict[str, Any]) -> dict[str, Any]:
        config = kwargs["vllm_config"]
        # Over slabs it takes this package's spec alone; with others an engine has no slabs.
        if "OffloadingConnector" in str(config.kv_transfer_config):
            _keep(kwargs["kv_cache_config"])
            return kwargs
        return slabbed(
            kwargs,
            hash_block_size=kwargs.get("hash_block_size") or 1,
            dcp_world_size=config.parallel_config.decode_context_parallel_size,
            pcp_world_size=config.parallel_config.prefill_context_parallel_size,
            metrics_collector=config.observability_config.kv_cache_metrics or None,
        )

    for owner, name, change in (
        (KVCacheManager, "__new__", of_manager),
        (KVCacheManager, "__init__", of_manager),
        (Scheduler, "__init__", of_scheduler),
    ):
        setattr(owner, name, _changing(getattr(owner, name), change))
    return reached


def _fitting(config: NaturalKVCacheConfig) -> int:
    """Return the tokens of a request that fills the slabs, one block at least."""
    groups = config.kv_cache_groups
    size: int = groups[0].kv_cache_spec.block_size
    return max(1, (config.num_blocks - 1) // len(groups)) * size


def _changing(
    function: Callable[..., Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[..., Any]:
    _, *names = inspect.signature(function).parameters

    @wraps(function)
    def changed(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(first, **change(dict(zip(names, args, strict=False)) | kwargs))

    return changed
