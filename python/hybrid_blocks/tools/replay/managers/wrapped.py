"""A manager around another one: it passes calls on."""

from collections.abc import Sequence

from hybrid_blocks.tools.replay.cache import BlockUnit
from hybrid_blocks.tools.replay.manager import ReplayManager


class WrappedManager:
    """Answers as ``inner`` what its subclasses, which do more in other calls, leave alone."""

    def __init__(self, inner: ReplayManager) -> None:
        self._inner = inner
        self.looks_again = inner.looks_again

    def waits_for_checkpoint(self, handle: int) -> bool:
        """Return whether a waiting request had better be passed over in this step."""
        return self._inner.waits_for_checkpoint(handle)

    def could_hold(self, num_tokens: int, under_way: Sequence[tuple[int, int]]) -> bool | None:
        """Return whether what is free or reclaimable would hold ``num_tokens`` more tokens."""
        return self._inner.could_hold(num_tokens, under_way)

    @property
    def unit(self) -> BlockUnit:
        """The unit in which blocks are counted."""
        return self._inner.unit

    @property
    def num_blocks(self) -> int:
        """Slabs, or blocks where there is one pool of whole slabs."""
        return self._inner.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Of these, the ones that hold nothing but cached content."""
        return self._inner.num_free_blocks

    @property
    def num_live_blocks(self) -> tuple[int, ...]:
        """Blocks with an owner, pool by pool."""
        return self._inner.num_live_blocks

    @property
    def used_bytes(self) -> int:
        """Bytes of slabs that hold a request's block."""
        return self._inner.used_bytes

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""
        return self._inner.max_request_tokens
