"""vLLM's ``BlockPool`` over the pool in Rust, with vLLM's maps and queue as views of it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from vllm.distributed.kv_events import AllBlocksCleared
from vllm.v1.core.block_pool import BlockPool as VllmBlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, BlockHashWithGroupId, KVCacheBlock
from vllm.v1.request import Request

from hybrid_blocks._core.vllm import Block, Blocks
from hybrid_blocks.vllm.log import logger

__all__ = ["BlockPool", "VllmBlockPool"]


class BlockPool(VllmBlockPool):
    """A drop-in for vLLM's pool: same decisions, same events, no Python object per block.

    The class inherits calls that vLLM's makes by other members (partial hits, events). Work that
    vLLM does block by block takes one call here. ``blocks`` makes its members when they are asked
    for, and always the same ones.
    """

    def __init__(self, num_gpu_blocks: int, *args: Any, **kwargs: Any) -> None:
        assert isinstance(num_gpu_blocks, int)
        assert num_gpu_blocks > 0
        # vLLM's own pool, with its null block alone, sets all the attributes that it has in the
        # installed version.
        super().__init__(1, *args, **kwargs)
        self.num_gpu_blocks = num_gpu_blocks
        # Any: what stands in for vLLM's classes is not derived from them.
        self._show(Blocks(num_gpu_blocks, keep_evicted=self.enable_kv_cache_events))

    def _show(self, blocks: Blocks) -> None:
        """Let vLLM see these blocks as the pool's."""
        self._blocks = cast("Any", blocks)
        queue = cast("Any", FreeBlockQueue(self._blocks))
        self._blocks.bind(self, queue.fake_free_list_head, queue.fake_free_list_tail, KVCacheBlock)
        self.blocks = self._blocks
        self.free_block_queue = queue
        self.null_block = self._blocks[0]
        self.cached_block_hash_to_block = cast("Any", CachedBlocks(self._blocks))
        self.cached_block_hashes_by_block = cast("Any", FurtherHashes(self._blocks))

    def get_cached_block(
        self, block_hash: BlockHash, kv_cache_group_ids: list[int]
    ) -> list[KVCacheBlock] | None:
        """Return the block of every group that holds the content, or nothing if one has none."""
        found: list[KVCacheBlock] | None
        found = self._blocks.get_in_groups(block_hash, kv_cache_group_ids)
        return found

    def cache_full_blocks(  # noqa: PLR0917 - vLLM's signature
        self,
        request: Request,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        """Let ``blocks[num_cached_blocks:num_full_blocks]`` be found from now on."""
        if num_cached_blocks >= num_full_blocks:
            return
        if self.enable_kv_cache_events or not isinstance(blocks[num_cached_blocks], Block):
            super().cache_full_blocks(
                request,
                blocks,
                num_cached_blocks,
                num_full_blocks,
                block_size,
                kv_cache_group_id,
                block_mask,
            )
            return
        self._blocks.insert_full(
            blocks,
            request.block_hashes,
            block_size // self.hash_block_size,
            num_cached_blocks,
            num_full_blocks,
            block_size,
            kv_cache_group_id,
            block_mask,
        )

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Hand out blocks, each with one owner.

        Raises ``ValueError`` if fewer are free.
        """
        if num_blocks > self._blocks.num_free:
            raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
        blocks: list[KVCacheBlock] = self._blocks.allocate(num_blocks)
        if self._reuse_watchers:
            self._notify_reuse(blocks)
        if self.enable_kv_cache_events:
            self._emit_block_removed_events(self._blocks.take_evicted())
        if self.metrics_collector:
            for block in blocks:
                if self.enable_caching:
                    self.metrics_collector.on_block_evicted(block)
                self.metrics_collector.on_block_allocated(block)
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add an owner to each block but null blocks."""
        self._blocks.touch(blocks)
        if self.metrics_collector:
            for block in blocks:
                if not block.is_null:
                    self.metrics_collector.on_block_accessed(block)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Take an owner from each block, given in the order in which they should go.

        Blocks of other pools are handed to those.
        """
        elsewhere = defaultdict(list)
        for block in self._blocks.free(ordered_blocks):
            if block.is_null:
                continue
            if block.pool is None or block.pool is self:
                # Made by hand: it counts its owners itself and has no place in the queue.
                block.ref_cnt -= 1
            else:
                elsewhere[block.pool].append(block)
        for pool, blocks in elsewhere.items():
            pool.free_blocks(blocks)

    def unpin_blocks(
        self, blocks: Iterable[KVCacheBlock], on_reuse: Callable[[KVCacheBlock], None]
    ) -> None:
        """Take an owner from each block; it stays readable until ``on_reuse`` is called."""
        blocks = list(blocks)
        assert all(block.ref_cnt > 0 for block in blocks)
        self._reuse_watchers.update((block.block_id, on_reuse) for block in blocks)
        self._blocks.free_warm(blocks)

    def move_block_hashes(self, src_block: KVCacheBlock, dst_block: KVCacheBlock) -> None:
        """Let what was found in ``src_block`` be found in ``dst_block``, its copy."""
        self._blocks.move_keys(src_block, dst_block)

    def reset_prefix_cache(self) -> bool:
        """Forget all content. Returns whether that was possible: no block may have an owner."""
        if num_used := self.num_gpu_blocks - 1 - self.get_num_free_blocks():
            logger.warning("The prefix cache was not reset: %d blocks are in use", num_used)
            return False
        self._blocks.reset()
        if self._reuse_watchers:
            self._notify_reuse([self.blocks[block_id] for block_id in list(self._reuse_watchers)])
        if self.metrics_collector:
            self.metrics_collector.reset()
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        logger.info("The prefix cache was reset")
        return True

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be handed out, those with content included."""
        num_free: int = self._blocks.num_free
        return num_free

    def _insert_block_hash(
        self,
        block_hash_with_group_id: BlockHashWithGroupId,
        block: KVCacheBlock,
        num_tokens: int | None,
    ) -> None:
        if not isinstance(block, Block):
            # A block made by hand keeps its own hash, as any of vLLM's blocks does.
            block.set_block_hash(block_hash_with_group_id, num_tokens)
            block = self.blocks[block.block_id]
        self._blocks.insert(block_hash_with_group_id, block, num_tokens)

    def _remove_cached_block_hashes(self, block: KVCacheBlock) -> list[BlockHashWithGroupId]:
        removed: list[BlockHashWithGroupId] = self._blocks.remove(block)
        return removed


# A block hash followed by the group's number: vLLM's ``BlockHashWithGroupId``.
Key = bytes


class CachedBlocks:
    """vLLM's ``BlockHashToBlockMap``: from a key to the blocks that hold its content."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def get_one_block(self, key: Key) -> Block | None:
        """Return the block that has held the content longest."""
        return self._blocks.get(key)

    def contain(self, key: Key, block_id: int) -> bool:
        """Return whether this very block holds the content."""
        return self._blocks.contains(key, block_id)

    def insert(self, key: Key, block: Block) -> None:
        """Let the block be found under the key."""
        self._blocks.insert(key, block)

    def pop(self, key: Key, block_id: int) -> Block | None:
        """Let the block be found under the key no more; return it if it was."""
        if not self._blocks.contains(key, block_id):
            return None
        block = self._blocks[block_id]
        num_tokens = block.block_hash_num_tokens
        for other in self._blocks.remove(block):
            if other != key:
                self._blocks.insert(other, block, num_tokens)
        return block

    def __len__(self) -> int:
        return self._blocks.num_keys


class FurtherHashes(Mapping[int, set[Key]]):
    """Keys of blocks that have more than one, by block id, without each block's first."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __getitem__(self, block_id: int) -> set[Key]:
        if keys := self._blocks.further_keys(block_id):
            return set(keys)
        raise KeyError(block_id)

    def __iter__(self) -> Iterator[int]:
        return (block_id for block_id in range(len(self._blocks)) if block_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class QueueEnd:
    """The fake block before the first or after the last free one."""

    __slots__ = ("_blocks", "_is_head")

    block_id = -1
    ref_cnt = 0
    is_null = False

    def __init__(self, blocks: Blocks, *, is_head: bool) -> None:
        self._blocks = blocks
        self._is_head = is_head

    @property
    def next_free_block(self) -> "Block | QueueEnd | None":
        """The first free block, for the head; nothing comes after the tail."""
        return self._blocks.first_free if self._is_head else None

    @property
    def prev_free_block(self) -> "Block | QueueEnd | None":
        """The last free block, for the tail; nothing comes before the head."""
        return None if self._is_head else self._blocks.last_free


class FreeBlockQueue:
    """Blocks without owner in the order in which they will be handed out.

    Blocks enter and leave it through the pool alone.
    """

    __slots__ = ("_blocks", "fake_free_list_head", "fake_free_list_tail")

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.fake_free_list_head = QueueEnd(blocks, is_head=True)
        self.fake_free_list_tail = QueueEnd(blocks, is_head=False)

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the queue. As in vLLM, tests write the number to feign a shortage."""
        return self._blocks.num_free

    @num_free_blocks.setter
    def num_free_blocks(self, count: int) -> None:
        self._blocks.num_free = count

    def get_all_free_blocks(self) -> list[Block]:
        """Return the blocks in order."""
        return self._blocks.all_free()

    def iter_blocks_after(self, cursor: Block | QueueEnd | None) -> Iterator[Block]:
        """Yield the blocks after ``cursor``, or all of them for ``None``."""
        block = (cursor or self.fake_free_list_head).next_free_block
        while isinstance(block, Block):
            yield block
            block = block.next_free_block
