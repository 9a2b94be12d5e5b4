"""The interface of every block manager that a replay drives."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hybrid_blocks.tools.replay.cache import BlockUnit

Handles = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]


class ReplayManager(Protocol):
    """A manager as a scheduler drives it, and what its memory is used for."""

    looks_again: bool = False
    """Whether a try to admit a request counts though it is refused, so that each step makes one."""

    weighs_prompts: bool = False
    """Whether a prompt that the budget cuts leaves a part of it to others that end sooner so."""

    step_tokens: int = 0
    """Prompt tokens that take as long as one more step; 0 where that is not known."""

    unit: BlockUnit
    """The unit of ``num_blocks`` and ``num_free_blocks``."""

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        """Register a request and return its handle.

        ``tokens`` are the prompt's token ids, shape ``[num_tokens]``. No block is taken.
        """

    def match_prefix(self, handle: int) -> int:
        """Return how many leading tokens the prefix cache holds, at most ``num_tokens - 1``."""

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        """Make room for ``num_new_tokens[i]`` more tokens of each request, in order.

        The first allocation of a request adopts its matched prefix; ``num_new_tokens`` counts the
        tokens after it. Returns how many requests were served: the first that does not fit, and
        all after it, are left as they were.
        """

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Record that ``num_tokens[i]`` tokens were computed; full blocks enter the cache."""

    def append_tokens(self, handles: Handles, tokens: Counts) -> None:
        """Append one sampled token to each request."""

    def preempt(self, handles: Handles) -> None:
        """Give back the requests' blocks; their tokens are kept, to be computed again."""

    def free(self, handles: Handles) -> None:
        """Give back the requests' blocks and forget the requests."""

    def begin_step(self) -> None:
        """Start a step: copies that were asked for are run, time passes."""

    def waits_for_checkpoint(self, handle: int) -> bool:  # noqa: ARG002
        """Return whether a waiting request had better be passed over in this step.

        Another request leaves a checkpoint in it from which this one can resume.
        """
        return False

    def num_uncached(self, handle: int) -> int:  # noqa: ARG002
        """Return how many tokens a waiting request would compute now; asked of what weighs them."""
        return 0

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
        return 0.0

    def stats(self) -> dict[str, int]:
        """Return counters, those that the manager has; see ``BlockManager.stats``."""
        return {}

    @property
    def num_blocks(self) -> int:
        """Blocks that can be handed out (the null block is not counted)."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner, cached ones included."""

    @property
    def num_live_blocks(self) -> tuple[int, ...]:
        """Blocks with an owner, pool by pool."""

    @property
    def used_bytes(self) -> int:
        """Bytes that only the running requests can have now."""

    def reserved_bytes(self) -> dict[str, int] | None:
        """Return what ``used_bytes`` are held for, by part; None if the manager cannot say."""
        return None

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""
