"""The configuration of the arena that level ``natural`` gives to scheduler and workers."""

from dataclasses import dataclass

from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor

from hybrid_blocks.vllm.worker.copies import Recipe


@dataclass
class NaturalKVCacheConfig(KVCacheConfig):
    """vLLM's configuration over slabs: ``num_blocks`` counts slabs, the null slab included.

    A slab of pool ``p`` is cut into ``blocks_per_slab[p]`` blocks. Block ``i`` of slab ``s`` has
    the id ``s * blocks_per_slab[p] + i``. Ids of different pools are different
    number spaces. A state slot is a whole slab, so its id is the slab's number. Several checkpoints
    in another format share a slab.
    """

    pools: tuple[int, ...] = ()
    """Pool of each group; groups of one pool have blocks of one stride."""
    kept_pools: tuple[int | None, ...] = ()
    """Pool of each group's checkpoints, where they have another format than running states."""
    recipes: tuple[Recipe | None, ...] = ()
    """How each group's checkpoints are converted, where they have another format."""
    blocks_per_slab: tuple[int, ...] = ()
    """Blocks of a slab, by pool."""
    zeroes_single_blocks: bool = False
    """Whether the engine's workers zero new attention blocks one by one, not slabs."""
    checkpoint_interval: int | None = None
    """Tokens between states that are kept besides those that the rules place; ``None`` for none."""
    step_tokens: int | None = None
    """Prompt tokens that take as long as one more step; ``None`` where that is not known."""

    prefill_checkpoint_alignment: int | None = None
    """Tokens that divide the distance from a chunk's start to a state that workers keep inside it.

    ``None`` where workers keep states at the ends of chunks only.
    """

    def kept_pool_of(self, group: int) -> int:
        """Return the pool of the blocks that a group's keys name."""
        kept = self.kept_pools[group] if self.kept_pools else None
        return self.pools[group] if kept is None else kept

    def recipe_of(self, group: int) -> Recipe:
        """Return how a group's checkpoints are converted."""
        recipe = self.recipes[group]
        if recipe is None:
            raise ValueError(f"group {group} keeps its checkpoints as its running states are")
        return recipe

    def blocks_per_slab_of(self, group: int) -> int:
        """Return how many blocks of a group a slab holds."""
        return self.blocks_per_slab[self.pools[group]]

    def num_slots(self, group: int) -> int:
        """Return the token slots that a group addresses: its largest slot-mapping value plus 1."""
        block_size: int = self.kv_cache_groups[group].kv_cache_spec.block_size
        return self.num_blocks * self.blocks_per_slab_of(group) * block_size

    def num_blocks_of(self, tensor: KVCacheTensor) -> int:
        """Return the blocks that the views of a tensor's layers address."""
        first = tensor.layers[0]
        for number, group in enumerate(self.kv_cache_groups):
            if first in group.layer_names:
                return self.num_blocks * self.blocks_per_slab_of(number)
        raise ValueError(f"layer {first!r} belongs to no group")
