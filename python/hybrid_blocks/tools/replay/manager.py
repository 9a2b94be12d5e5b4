"""The engine's calls to a manager beyond the interface that all managers offer."""

from collections.abc import Sequence
from typing import Protocol

from hybrid_blocks.manager import Manager
from hybrid_blocks.tools.replay.cache import BlockUnit


class ReplayManager(Manager, Protocol):
    """A manager as a scheduler drives it, and what its memory is used for."""

    looks_again: bool
    """Whether a try to admit a request counts though it is refused, so that each step makes one."""

    starts_later: bool
    """Whether a prompt that the budget would cut waits for the next step, if it ends no later."""

    def begin_step(self) -> None:
        """Start a step: copies that were asked for are run, time passes."""

    def waits_for_checkpoint(self, handle: int) -> bool:
        """Return whether a waiting request had better be passed over in this step.

        Another request leaves a checkpoint in it from which this one can resume.
        """

    def could_hold(self, num_tokens: int, under_way: Sequence[tuple[int, int]]) -> bool | None:
        """Return whether what is free or reclaimable would hold ``num_tokens`` more tokens.

        ``under_way`` are prompts that were admitted, as their tokens computed and known: the rest
        of each is promised. Live blocks may be moved together. A plain count of blocks, not what
        admission does; None if the manager cannot say.
        """

    def chunk(self, handle: int, start: int, num_new_tokens: int) -> int:
        """Return how many of the tokens after ``start`` to compute in one step, at most as many.

        0 if none, because the end of so short a chunk would be of no use.
        """

    def take_load_seconds(self) -> float:
        """Return how long the loads from other memory since the last call took."""

    def stats(self) -> dict[str, int]:
        """Return counters, those that the manager has; see ``BlockManager.stats``."""

    @property
    def unit(self) -> BlockUnit:
        """The unit of ``num_blocks`` and ``num_free_blocks``."""

    @property
    def num_live_blocks(self) -> tuple[int, ...]:
        """Blocks with an owner, pool by pool."""

    @property
    def used_bytes(self) -> int:
        """Bytes that only the running requests can have now."""

    def reserved_bytes(self) -> dict[str, int] | None:
        """Return what ``used_bytes`` are held for, by part; None if the manager cannot say."""

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""


class WrappedManager:
    """Answers as ``inner`` what its subclasses, which do more in other calls, leave alone."""

    def __init__(self, inner: ReplayManager) -> None:
        self._inner = inner
        self.looks_again, self.starts_later = inner.looks_again, inner.starts_later

    def waits_for_checkpoint(self, handle: int) -> bool:
        """Return whether a waiting request had better be passed over in this step."""
        return self._inner.waits_for_checkpoint(handle)

    def could_hold(self, num_tokens: int, under_way: Sequence[tuple[int, int]]) -> bool | None:
        """Return whether what is free or reclaimable would hold ``num_tokens`` more tokens."""
        return self._inner.could_hold(num_tokens, under_way)

    def take_load_seconds(self) -> float:
        """Return how long the loads from other memory since the last call took."""
        return self._inner.take_load_seconds()

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
        """Blocks of these that hold nothing but cached content."""
        return self._inner.num_free_blocks

    @property
    def num_live_blocks(self) -> tuple[int, ...]:
        """Blocks with an owner, pool by pool."""
        return self._inner.num_live_blocks

    @property
    def used_bytes(self) -> int:
        """Bytes of slabs that hold a request's block."""
        return self._inner.used_bytes

    def reserved_bytes(self) -> dict[str, int] | None:
        """Return what ``used_bytes`` are held for, by part."""
        return self._inner.reserved_bytes()

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""
        return self._inner.max_request_tokens
