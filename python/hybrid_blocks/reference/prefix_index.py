"""Which blocks hold which content."""


class PrefixIndex:
    """Digest to blocks, in the order in which they came to hold it, and back."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, dict[int, None]] = {}
        self._digest: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._digest

    def __len__(self) -> int:
        return len(self._digest)

    def find(self, digest: bytes) -> int | None:
        """Return the block that has held this content longest."""
        return next(iter(self._blocks.get(digest, ())), None)

    def insert(self, digest: bytes, block: int) -> None:
        """Say what a block holds."""
        self._blocks.setdefault(digest, {})[block] = None
        self._digest[block] = digest

    def remove(self, block: int) -> None:
        """Forget what a block holds, if anything."""
        digest = self._digest.pop(block, None)
        if digest is not None:
            holders = self._blocks[digest]
            del holders[block]
            if not holders:
                del self._blocks[digest]

    def check_integrity(self) -> None:
        """Assert that both directions agree."""
        assert self._digest == {
            block: digest for digest, blocks in self._blocks.items() for block in blocks
        }
