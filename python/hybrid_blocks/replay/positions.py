"""Which positions of a group's block table a forward pass reads and writes."""

import numpy as np
import numpy.typing as npt

from hybrid_blocks.plan import GroupPlan


def read_positions(group: GroupPlan, computed: int) -> range:
    """Return the positions that the token after ``computed`` tokens looks at.

    A state group reads its first slot.
    The output of an encoder belongs to no token: cross attention reads nothing here.
    """
    if computed == 0 or group.kind == "cross":
        return range(0)
    if group.kind == "state":
        return range(1)
    first = group.rules.num_skipped_tokens(computed)
    return range(first // group.block_tokens, -(-computed // group.block_tokens))


def written_positions(group: GroupPlan, start: int, end: int) -> range:
    """Return the positions that computing tokens ``start`` to ``end`` writes."""
    if group.kind == "cross":
        return range(0)
    if group.kind == "state":
        return range(1)
    return range(start // group.block_tokens, -(-end // group.block_tokens))


def held_tokens(group: GroupPlan, positions: range, length: int) -> npt.NDArray[np.int64]:
    """Return how many leading tokens decide what the blocks at ``positions`` hold.

    A state is that of all ``length`` tokens; another block is written up to its end, or theirs.
    """
    if group.kind == "state":
        return np.full(len(positions), length, dtype=np.int64)
    ends = (np.arange(positions.start, positions.stop, dtype=np.int64) + 1) * group.block_tokens
    return np.minimum(ends, length)
