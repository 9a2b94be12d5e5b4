"""vLLM's scheduler over a device: vLLM's own plan of a model's bytes, or level ``natural``'s."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.config import KVTransferConfig, VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor
from vllm.v1.kv_offload.config import OffloadingConfig

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan import Deployment, VllmPlan, plan_vllm
from hybrid_blocks.plan.geometry import capacity
from hybrid_blocks.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.replay.managers.vllm_groups import BlockSizes, make_groups
from hybrid_blocks.replay.tiers.below import Below
from hybrid_blocks.replay.tiers.connector import MAKE, SlabTiersConnector, TiersConnector
from hybrid_blocks.replay.tiers.side import refusals_of
from hybrid_blocks.replay.tiers.slabs import slab_config

if TYPE_CHECKING:
    from vllm.v1.request import Request

MakeBelow = Callable[[OffloadingConfig, list[int]], Below]


def plan_device(cache: Cache) -> VllmPlan:
    """Plan the device as vLLM does.

    Raises:
        ReplayError: a cache that is given in blocks, or more than one GPU; memory that holds no
            request.

    """
    model, deployment = _model_and_deployment(cache)
    deployment = msgspec.structs.replace(deployment, block_size=None)
    try:
        plan = plan_vllm(model, cache.memory_bytes, deployment)
    except PlanError as error:
        raise ReplayError(str(error)) from error
    if plan.longest() < 2:
        raise ReplayError(
            f"vLLM's plan has {plan.num_blocks} blocks of {plan.block_bytes:,} bytes, which hold "
            "no request; give more memory"
        )
    return plan


def longest_in_slabs(cache: Cache) -> int:
    """Return the longest request that level ``natural`` holds alone, at most the model's longest.

    Raises:
        ReplayError: as `plan_device`; a model that the level refuses.

    """
    model, deployment = _model_and_deployment(cache)
    if refusals := refusals_of(cache):
        raise ReplayError(
            f"{model.name} does not run at level natural ({', '.join(refusals)}); leave natural "
            "out of --tiering"
        )
    longest = capacity.longest(cache.geometry, deployment.length(model))
    if longest < 2:
        raise ReplayError(
            f"level natural's plan has {cache.geometry.usable_slabs} slabs of "
            f"{cache.geometry.slab_bytes:,} bytes, which hold no request; give more memory"
        )
    return longest


def _model_and_deployment(cache: Cache) -> tuple[Model, Deployment]:
    model, deployment = cache.model, cache.deployment
    if model is None or deployment is None:
        raise ReplayError("--host needs --model and --memory: tiers hold bytes, not blocks")
    if deployment.tp > 1 or deployment.num_speculative_tokens:
        raise ReplayError(
            f"--host replays one GPU without drafts, not --tp {deployment.tp} and "
            f"--num-speculative-tokens {deployment.num_speculative_tokens}"
        )
    return model, deployment


class Device:
    """vLLM's own scheduler, with its connector to tiers below.

    Attributes:
        scheduler: vLLM's.
        connector: its connector.
        hasher: what hashes a new request's blocks.

    """

    def __init__(  # noqa: PLR0917 - of one call each
        self,
        kv_cache_config: KVCacheConfig,
        config: EngineConfig,
        connector: type[TiersConnector],
        make_below: MakeBelow,
        max_model_len: int,
        hash_block_size: int,
    ) -> None:
        def configure(vllm_config: VllmConfig) -> None:
            vllm_config.cache_config.prefix_cache_retention_interval = (
                kv_cache_config.prefix_cache_retention_interval
            )
            vllm_config.scheduler_config.watermark = config.watermark
            vllm_config.kv_transfer_config = KVTransferConfig(
                kv_connector=connector.__name__,
                kv_connector_module_path=connector.__module__,
                kv_role="kv_both",
                kv_connector_extra_config={MAKE: make_below},
            )

        scheduler: Any = scheduler_over(
            kv_cache_config,
            num_requests=config.max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
            hash_block_size=hash_block_size,
            scheduler_cls=Scheduler,
            configure=configure,
        )
        self.scheduler = scheduler
        self.connector: TiersConnector = scheduler.connector
        self.hasher: Callable[[Request], Any] = make_hasher(hash_block_size)


def stock_device(
    cache: Cache, config: EngineConfig, make_below: MakeBelow, retention: int | None
) -> Device:
    """Return vLLM's device.

    Raises:
        ReplayError: as `plan_device`.

    """
    assert cache.deployment is not None
    plan = plan_device(cache)
    groups = make_groups(plan, cache.deployment)
    sizes = BlockSizes.of(groups, retention)
    kv_cache_config = KVCacheConfig(
        num_blocks=plan.num_blocks,
        kv_cache_tensors=[_tensor(plan, groups)],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=sizes.retention,
    )
    longest = plan.longest()
    return Device(
        *(kv_cache_config, config, TiersConnector, make_below, longest, sizes.hash_block),
    )


def slab_device(
    cache: Cache, config: EngineConfig, make_below: MakeBelow, retention: int | None
) -> Device:
    """Return the device of level ``natural``, in slabs; the level must run.

    Raises:
        ReplayError: as `longest_in_slabs`.

    """
    longest = longest_in_slabs(cache)
    kv_cache_config = slab_config(cache.geometry, longest, retention)
    hash_block = cache.geometry.hash_block_size
    return Device(
        *(kv_cache_config, config, SlabTiersConnector, make_below, longest, hash_block),
    )


def _tensor(plan: VllmPlan, groups: list[Any]) -> KVCacheTensor:
    """The whole allocation; callers read only its size."""
    return KVCacheTensor(
        size=plan.block_bytes * plan.num_blocks,
        layers=groups[0].layer_names,
        layer_stride=0,
        block_stride=plan.block_bytes,
    )
