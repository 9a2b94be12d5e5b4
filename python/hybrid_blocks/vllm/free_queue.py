"""vLLM's ``FreeKVCacheBlockQueue`` over the order that the pool keeps."""

from collections.abc import Iterator

from hybrid_blocks._core.vllm import Block, Blocks


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
        """Blocks in the queue. As in vLLM it can be written to, to feign a shortage."""
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
