"""A manager that finds of each prompt what the recorded engine found, and always has room."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hybrid_blocks.manager import Counts, Handles
from hybrid_blocks.replay.cache import BlockUnit
from hybrid_blocks.sizing.served import Floats

_BLOCKS = 2**40


class RecordedHits:
    """Keeps no block: hits are read from the file, so that the clock alone is compared."""

    num_blocks = num_free_blocks = max_request_tokens = _BLOCKS
    num_live_blocks = (0,)
    used_bytes = 0
    looks_again = False
    unit = BlockUnit()

    def __init__(self, found: Floats) -> None:
        self._found = found

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:  # noqa: ARG002
        """Return the index of the request in the trace."""
        return int(request_id)

    def match_prefix(self, handle: int) -> int:
        """Return what the engine found."""
        return int(self._found[handle])

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:  # noqa: ARG002
        """Serve all."""
        return len(handles)

    def waits_for_checkpoint(self, handle: int) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def could_hold(
        self,
        num_tokens: int,  # noqa: ARG002
        under_way: Sequence[tuple[int, int]],  # noqa: ARG002
    ) -> bool | None:
        """Return None: nothing ever waits for memory."""
        return None

    def chunk(self, handle: int, start: int, num_new_tokens: int) -> int:  # noqa: ARG002
        """Return all."""
        return num_new_tokens

    def stats(self) -> dict[str, int]:
        """Return nothing: nothing is counted."""
        return {}

    def begin_step(self) -> None:
        """Do nothing."""

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Do nothing."""

    def append_tokens(self, handles: Handles, tokens: Counts) -> None:
        """Do nothing."""

    def preempt(self, handles: Handles) -> None:
        """Do nothing."""

    def free(self, handles: Handles) -> None:
        """Do nothing."""
