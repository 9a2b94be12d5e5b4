"""The engine's calls to a manager beyond the interface that all managers offer."""

from collections.abc import Sequence
from typing import Protocol

from hybrid_blocks.manager import Manager
from hybrid_blocks.tools.replay.cache import BlockUnit


class ReplayManager(Manager, Protocol):
    """A manager as a scheduler drives it, and what its memory is used for."""

    looks_again: bool
    """Whether a try to admit a request counts though it is refused, so that each step makes one."""

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

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""
