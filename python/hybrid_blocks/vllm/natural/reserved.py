"""The figure that says what an engine's slabs are held for."""

from typing import Any

from hybrid_blocks import metrics as figures
from hybrid_blocks.metrics import Sample
from hybrid_blocks.vllm.natural.groups import are_natural, arena_plan
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager


def publish(scheduler: Any) -> None:
    """Let an engine's manager publish the reserved bytes, by what they are held for."""
    manager = scheduler.kv_cache_manager
    if not isinstance(manager, NaturalKVCacheManager):
        return
    config = manager.kv_cache_config
    if not (are_natural(config.kv_cache_groups) and config.recipes):
        # The planner did not make this configuration, so it does not know the sizes.
        return
    plan = arena_plan(scheduler.vllm_config, config)
    block_bytes = [group.block_bytes for group in plan.groups]

    def samples() -> list[Sample]:
        requests = scheduler.requests.items()
        computed = {id_: request.num_computed_tokens for id_, request in requests}
        parts = manager._reserved_bytes(plan.slab_bytes, block_bytes, computed)
        return [figures.RESERVED.sample(num_bytes, part=part) for part, num_bytes in parts]

    manager.add_samples(samples)
