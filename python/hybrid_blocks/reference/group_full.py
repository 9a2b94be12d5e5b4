"""Full attention: every token is looked at by all later ones."""

from collections.abc import Sequence

from hybrid_blocks.reference.pool import Pool
from hybrid_blocks.reference.prefix_index import PrefixIndex


class FullAttentionGroup:
    """Block tables of layers that keep every token."""

    def __init__(self, block_size: int, pool: Pool, index: PrefixIndex) -> None:
        self._block_size = block_size
        self._pool = pool
        self._index = index
        self._tables: dict[int, list[int]] = {}
        self._num_cached: dict[int, int] = {}

    def match(self, digests: Sequence[bytes], max_tokens: int) -> int:
        """Return the longest prefix, in tokens, whose blocks all hold their content."""
        return len(self._hits(digests, max_tokens)) * self._block_size

    def num_missing(
        self, handle: int, digests: Sequence[bytes], matched: int, num_tokens: int
    ) -> int:
        """Return how many ownerless blocks it takes to hold ``num_tokens`` tokens of a request.

        A request without a table first adopts ``matched`` tokens, and hit blocks that have no
        owner leave the queue as well.
        """
        held = self._tables.get(handle)
        if held is None:
            held = self._hits(digests, matched)
            revived = sum(1 for block in held if not self._pool.num_owners(block))
        else:
            revived = 0
        return revived + max(self._blocks(num_tokens) - len(held), 0)

    def adopt(self, handle: int, digests: Sequence[bytes], matched: int) -> None:
        """Begin a request's table with the blocks that hold its first ``matched`` tokens."""
        hits = self._hits(digests, matched)
        self._pool.touch(hits)
        self._tables[handle] = hits
        self._num_cached[handle] = len(hits)

    def grow(self, handle: int, num_tokens: int) -> None:
        """Take the blocks that ``num_tokens`` tokens need."""
        table = self._tables[handle]
        table += self._pool.get(max(self._blocks(num_tokens) - len(table), 0))

    def cache(self, handle: int, digests: Sequence[bytes], num_computed: int) -> None:
        """Let the blocks that are full after ``num_computed`` tokens be hit from now on."""
        num_full = num_computed // self._block_size
        for position in range(self._num_cached[handle], num_full):
            self._index.insert(digests[position], self._tables[handle][position])
        self._num_cached[handle] = num_full

    def release(self, handle: int) -> None:
        """Give back a request's blocks, last first: a prefix outlives what follows it."""
        self._pool.free(self._tables.pop(handle, [])[::-1])
        self._num_cached.pop(handle, None)

    def table(self, handle: int) -> list[int]:
        """Return a request's blocks by position."""
        return list(self._tables.get(handle, ()))

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _hits(self, digests: Sequence[bytes], max_tokens: int) -> list[int]:
        hits = []
        for digest in digests[: max_tokens // self._block_size]:
            block = self._index.find(digest)
            if block is None:
                break
            hits.append(block)
        return hits
