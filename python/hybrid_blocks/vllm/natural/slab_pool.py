"""The calls of vLLM's ``BlockPool``, answered for several pools over one arena of slabs."""

from collections.abc import Iterable
from typing import Any, Self, cast

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from hybrid_blocks._core.vllm import Blocks
from hybrid_blocks.vllm.block_pool import BlockPool
from hybrid_blocks.vllm.free_queue import FreeBlockQueue
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig


class SlabQueue(FreeBlockQueue):
    """Free blocks of one pool in their order; their number is that of the arena's free slabs."""

    __slots__ = ()

    @property  # type: ignore[misc]  # vLLM's tests alone write it
    def num_free_blocks(self) -> int:
        """Slabs that hold no live block, as `SlabPool.get_num_free_blocks`."""
        count: int = self._blocks.num_whole_slabs
        return count


class SlabPool(BlockPool):
    """All pools of an arena. Where vLLM counts blocks, this counts slabs.

    A slab is free where no block in it is live. ``pools`` are the blocks of each pool.
    """

    pools: list[Blocks]

    @classmethod
    def over(cls, pool: BlockPool, config: NaturalKVCacheConfig) -> Self:
        """Return what takes the place of a pool that vLLM made for the same configuration."""
        own = cls.__new__(cls)
        vars(own).update(vars(pool))
        own.pools = Blocks.over_slabs(
            config.num_blocks,
            list(config.blocks_per_slab),
            keep_evicted=pool.enable_kv_cache_events,
        )
        for blocks in own.pools:
            own._show(blocks)
        own._show(own.pools[0])
        own.free_block_queue = cast("Any", SlabQueue(own.pools[0]))
        return own

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Take an owner from each block."""
        blocks: Any = ordered_blocks
        for pool in self.pools:
            blocks = pool.free(blocks)

    def get_num_free_blocks(self) -> int:
        """Return how many slabs hold no live block."""
        return self.pools[0].num_whole_slabs
