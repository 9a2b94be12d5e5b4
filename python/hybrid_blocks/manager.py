"""The interface every block manager offers to a scheduler."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Handles = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]


class Manager(Protocol):
    """The calls of a continuous-batching scheduler, a handful of times a step."""

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

    @property
    def num_blocks(self) -> int:
        """Blocks that can be handed out (the null block is not counted)."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner, cached ones included."""
