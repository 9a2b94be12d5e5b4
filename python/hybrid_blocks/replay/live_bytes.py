"""The bytes that running requests cannot do without."""

import numpy as np
import numpy.typing as npt

from hybrid_blocks.plan import ArenaPlan

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
            tokens = int(group.rules.num_live_tokens(lengths).sum())
            total += tokens * group.block_bytes // group.block_tokens
        return total
