"""vLLM's scheduler and device manager over the plan that vLLM makes for a model's bytes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.config import KVTransferConfig, VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor
from vllm.v1.kv_offload.config import OffloadingConfig

from hybrid_blocks.model import PlanError
from hybrid_blocks.plan import VllmPlan, plan_vllm
from hybrid_blocks.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.replay.managers.vllm_groups import BlockSizes, make_groups
from hybrid_blocks.replay.tiers.below import Below
from hybrid_blocks.replay.tiers.connector import MAKE, TiersConnector

if TYPE_CHECKING:
    from vllm.v1.request import Request

MakeBelow = Callable[[OffloadingConfig, list[int]], Below]


def plan_device(cache: Cache) -> VllmPlan:
    """Plan the device as vLLM does.

    Raises:
        ReplayError: a cache that is given in blocks, or more than one GPU; memory that holds no
            request.

    """
    if cache.model is None or cache.deployment is None:
        raise ReplayError("--host needs --model and --memory: tiers hold bytes, not blocks")
    deployment = msgspec.structs.replace(cache.deployment, block_size=None)
    if deployment.tp > 1 or deployment.num_speculative_tokens:
        raise ReplayError(
            f"--host replays one GPU without drafts, not --tp {deployment.tp} and "
            f"--num-speculative-tokens {deployment.num_speculative_tokens}"
        )
    try:
        plan = plan_vllm(cache.model, cache.memory_bytes, deployment)
    except PlanError as error:
        raise ReplayError(str(error)) from error
    if plan.longest() < 2:
        raise ReplayError(
            f"vLLM's plan has {plan.num_blocks} blocks of {plan.block_bytes:,} bytes, which hold "
            "no request; give more memory"
        )
    return plan


class Device:
    """vLLM's own scheduler, with its connector to tiers below.

    Attributes:
        scheduler: vLLM's.
        connector: its connector.
        hasher: what hashes a new request's blocks.

    """

    def __init__(
        self,
        cache: Cache,
        plan: VllmPlan,
        config: EngineConfig,
        make_below: MakeBelow,
        retention: int | None,
    ) -> None:
        assert cache.deployment is not None
        groups = make_groups(plan, cache.deployment)
        sizes = BlockSizes.of(groups, retention)

        def configure(vllm_config: VllmConfig) -> None:
            vllm_config.cache_config.prefix_cache_retention_interval = sizes.retention
            vllm_config.scheduler_config.watermark = config.watermark
            vllm_config.kv_transfer_config = KVTransferConfig(
                kv_connector=TiersConnector.__name__,
                kv_connector_module_path=TiersConnector.__module__,
                kv_role="kv_both",
                kv_connector_extra_config={MAKE: make_below},
            )

        scheduler: Any = scheduler_over(
            KVCacheConfig(
                num_blocks=plan.num_blocks,
                kv_cache_tensors=[_tensor(plan, groups)],
                kv_cache_groups=groups,
                prefix_cache_retention_interval=sizes.retention,
            ),
            num_requests=config.max_num_seqs,
            max_model_len=plan.longest(),
            max_num_batched_tokens=config.max_num_batched_tokens,
            hash_block_size=sizes.hash_block,
            scheduler_cls=Scheduler,
            configure=configure,
        )
        self.scheduler = scheduler
        self.connector: TiersConnector = scheduler.connector
        self.hasher: Callable[[Request], Any] = make_hasher(sizes.hash_block)


def _tensor(plan: VllmPlan, groups: list[Any]) -> KVCacheTensor:
    """The whole allocation; callers read only its size."""
    return KVCacheTensor(
        size=plan.block_bytes * plan.num_blocks,
        layers=groups[0].layer_names,
        layer_stride=0,
        block_stride=plan.block_bytes,
    )
