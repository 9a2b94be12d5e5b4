"""The bytes that running requests cannot do without."""

import numpy as np
import numpy.typing as npt

from hybrid_blocks.plan import ArenaPlan, GroupPlan

Int64s = npt.NDArray[np.int64]


class LiveBytes:
    """`ArenaPlan.live_bytes` of many requests at once; tokens are not rounded to blocks."""

    def __init__(self, geometry: ArenaPlan) -> None:
        self._token_groups = [g for g in geometry.groups if g.slots_per_request is None]
        self._state_bytes = sum(
            group.live_bytes(0) for group in geometry.groups if group.slots_per_request is not None
        )

    def of(self, lengths: Int64s) -> int:
        """Return the bytes that requests with ``lengths`` computed tokens need together."""
        total = len(lengths) * self._state_bytes
        for group in self._token_groups:
            tokens = int(_live_tokens(group, lengths).sum())
            total += tokens * group.block_bytes // group.block_tokens
        return total


def _live_tokens(group: GroupPlan, lengths: Int64s) -> Int64s:
    if group.encoder_tokens is not None:
        return np.full_like(lengths, group.encoder_tokens)
    if group.window is None:
        return lengths
    if group.kind == "chunked":
        chunk: Int64s = np.maximum(lengths - 1, 0) // group.window
        return lengths - chunk * group.window
    last: Int64s = np.minimum(lengths, group.window)
    return last
