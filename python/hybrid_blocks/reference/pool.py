"""Who owns which block, and which block goes next."""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from hybrid_blocks.errors import BlockError, InvalidArgumentError, OutOfBlocksError
from hybrid_blocks.reference.prefix_index import PrefixIndex

NULL_BLOCK = 0


class Pool:
    """Blocks ``1`` to ``num_blocks`` with reference counts and one queue of ownerless blocks.

    The front of the queue is handed out next. At the start it holds all ids in rising order. A
    block that loses its last owner goes to the front if nothing can hit it, so that it is used
    again at once, and to the back if it is in the index, so that the queue is an LRU order.
    """

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        if num_blocks < 1:
            raise InvalidArgumentError(
                f"a pool of {num_blocks} blocks can serve nothing; give it at least 1"
            )
        self.num_blocks = num_blocks
        self._index = index
        self._queue = OrderedDict[int, None].fromkeys(range(1, num_blocks + 1))
        self._owners: Counter[int] = Counter()

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner, cached ones included."""
        return len(self._queue)

    def num_owners(self, block: int) -> int:
        """How many tables hold the block."""
        return self._owners[block]

    def get(self, count: int) -> list[int]:
        """Hand out the first ``count`` blocks of the queue; what they held can be hit no more."""
        if count > len(self._queue):
            raise OutOfBlocksError(
                f"{count} blocks are needed and {len(self._queue)} have no owner"
            )
        blocks = [self._queue.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._index.remove(block)
            self._owners[block] = 1
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Add an owner to each block."""
        for block in blocks:
            self._queue.pop(block, None)
            self._owners[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Take an owner from each block, in eviction order: the first is used again first."""
        ownerless = []
        for block in blocks:
            if not self._owners[block]:
                raise BlockError(f"block {block} has no owner: freed twice, or never allocated")
            self._owners[block] -= 1
            if not self._owners[block]:
                ownerless.append(block)
        self._queue.update(dict.fromkeys(ownerless))
        for block in reversed(ownerless):
            if block not in self._index:
                self._queue.move_to_end(block, last=False)

    def check_integrity(self) -> None:
        """Assert that every block either has an owner or waits in the queue."""
        live = {block for block, owners in self._owners.items() if owners}
        assert live.isdisjoint(self._queue)
        assert live | self._queue.keys() == set(range(1, self.num_blocks + 1))
