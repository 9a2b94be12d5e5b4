"""The groups that vLLM's coordinator worked out, as the core needs them; which it covers."""

from dataclasses import dataclass
from math import gcd
from typing import Any

from vllm.v1.core.kv_cache_coordinator import (
    HybridKVCacheCoordinator,
    KVCacheCoordinator,
    UnitaryKVCacheCoordinator,
)
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig

from hybrid_blocks._core import GroupKind
from hybrid_blocks.reasons import sentence
from hybrid_blocks.vllm import releases, specs
from hybrid_blocks.vllm.specs import is_state, kind_of


@dataclass(frozen=True, slots=True)
class Group:
    """One group; sizes are in tokens, and the kind is text of the core's."""

    kind: str
    block_size: int
    use_eagle: bool
    admission_cap: int | None
    zeroes_new_blocks: bool
    is_cached: bool = True
    pool: int = 0
    kept_pool: int | None = None
    """Pool of checkpoints, if they have another format than running states."""

    @property
    def rules(self) -> GroupKind:
        """The core's kind."""
        return GroupKind(self.kind)


@dataclass(frozen=True, slots=True)
class Geometry:
    """All groups and what they share; the fields are those of the core's configuration."""

    release_rules: list[str]
    groups: list[Group]
    lookup: str
    lookup_groups: list[tuple[list[int], bool]]
    fine_grained: bool
    hash_block_size: int
    scheduler_block_size: int
    max_model_len: int
    enable_events: bool
    enable_residency: bool
    retention_interval: int | None
    num_reprefillable: int
    num_hash_lookahead: int
    drops_eagle_block: bool
    drops_eagle_checkpoint: bool
    shared_prefix_checkpoint: bool
    watermark_blocks: int
    checkpoints: str | None = None
    """The placement of checkpoints over slabs; ``None`` as vLLM places them."""
    prefill_checkpoint_alignment: int | None = None
    """Distances inside a chunk at which a forward keeps states; ``None`` if chunks end there."""
    zeroes_blocks: bool = False


def geometry(manager: KVCacheManager, *, use_eagle: bool) -> Geometry:
    """Read the geometry off vLLM's manager, as it stands after its construction."""
    coordinator = manager.coordinator
    lookup, lookup_groups = _lookup(coordinator)
    return Geometry(
        release_rules=sorted(releases.installed.rules),
        groups=[
            _group(single, manager.max_model_len) for single in coordinator.single_type_managers
        ],
        lookup=lookup,
        lookup_groups=lookup_groups,
        fine_grained=coordinator.enable_partial_hash_hits,
        # Without caching no block is hashed, and vLLM names a size that need not divide blocks.
        hash_block_size=manager.block_pool.hash_block_size
        if lookup != "none"
        else gcd(*(single.block_size for single in coordinator.single_type_managers)),
        scheduler_block_size=coordinator.scheduler_block_size,
        max_model_len=manager.max_model_len,
        enable_events=manager.block_pool.enable_kv_cache_events,
        enable_residency=manager.block_pool.metrics_collector is not None,
        retention_interval=coordinator.retention_interval,
        num_reprefillable=coordinator.num_reprefillable_tokens,
        num_hash_lookahead=releases.installed.num_hash_lookahead_tokens(manager.block_pool),
        drops_eagle_block=bool(releases.installed.drop_eagle_group_ids(coordinator)),
        drops_eagle_checkpoint=use_eagle,
        shared_prefix_checkpoint=manager.mamba_shared_prefix_checkpoint,
        watermark_blocks=manager.watermark_blocks,
    )


def _lookup(coordinator: KVCacheCoordinator) -> tuple[str, list[tuple[list[int], bool]]]:
    match coordinator:
        case HybridKVCacheCoordinator():
            groups = [(group.group_ids, group.use_eagle) for group in coordinator.attention_groups]
            return "hybrid", groups
        case UnitaryKVCacheCoordinator():
            return "unitary", [([0], 0 in releases.installed.drop_eagle_group_ids(coordinator))]
        case _:
            return "none", []


def _group(manager: SingleTypeKVCacheManager, max_model_len: int) -> Group:
    spec = manager.kv_cache_spec
    return Group(
        kind=str(kind_of(spec, max_model_len)),
        block_size=manager.block_size,
        use_eagle=manager.use_eagle,
        admission_cap=manager.max_admission_blocks_per_request,
        zeroes_new_blocks=manager.records_new_block_ids,
        is_cached=spec.prefix_cacheable,
    )


def unsupported_reason(
    kv_cache_config: KVCacheConfig, *, hash_block_size: int = 1, **_: Any
) -> str | None:
    """Return why an engine needs vLLM's own managers, or ``None`` if it does not.

    Takes what vLLM's ``KVCacheManager`` is given.
    """
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        manager = releases.installed.manager_class(group)
        if manager not in specs.MANAGERS:
            name = getattr(manager, "__name__", manager)
            return sentence("group_manager", number=number, manager=name)
        is_scratch = not specs.kind_of(spec).is_cached
        if not spec.prefix_cacheable and not is_scratch and spec.block_size % hash_block_size:
            return sentence(
                "uncached_group", number=number, block=spec.block_size, hash_block=hash_block_size
            )
        if is_state(spec) and spec.mamba_cache_mode not in ("none", "align"):
            return sentence("mamba_mode", mode=spec.mamba_cache_mode)
    return None
