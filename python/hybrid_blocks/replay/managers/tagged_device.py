"""A device that holds tags instead of keys, values and states. Imports torch."""

from itertools import pairwise
from math import gcd

import numpy as np
import numpy.typing as npt

from hybrid_blocks.plan import ArenaPlan
from hybrid_blocks.replay.managers.rust import pools_of
from hybrid_blocks.replay.tagged_arena import WORD_BYTES, TaggedArena, TaggedGroup

Int32s = npt.NDArray[np.int32]
Tags = npt.NDArray[np.uint64]


class TaggedDevice:
    """The arena of a geometry, scaled down: the slabs and block ids are the same.

    The greatest common divisor of all block strides becomes one word, so that blocks of different
    pools overlap as they would on the device. Checkpoints of another format are groups of their
    own; a copy between the formats keeps the content.
    """

    def __init__(self, geometry: ArenaPlan) -> None:
        strides = [group.block_stride for group in geometry.groups]
        self._at = {(index, group.pool): index for index, group in enumerate(geometry.groups)}
        for index, group in enumerate(geometry.groups):
            if group.kept_pool is not None and group.kept_per_slab is not None:
                self._at[index, group.kept_pool] = len(strides)
                strides.append(geometry.slab_bytes // group.kept_per_slab)
        self._pools = np.array([group.pool for group in geometry.groups], dtype=np.int32)
        unit = gcd(*strides)
        self._arena = TaggedArena(
            geometry.num_slabs,
            geometry.slab_bytes // unit * WORD_BYTES,
            [_scaled(stride // unit) for stride in strides],
        )
        rng = np.random.default_rng(0)
        self._salts = rng.integers(0, 2**64, len(geometry.groups), dtype=np.uint64)

    def run(self, copies: Int32s) -> None:
        """Run copies in order, as ``BlockManager.take_copies`` gives them."""
        if not len(copies):
            return
        kinds = np.column_stack((copies[:, 0], pools_of(copies, self._pools)))
        starts = np.flatnonzero(np.diff(kinds, axis=0).any(axis=1)) + 1
        for start, end in pairwise([0, *starts.tolist(), len(copies)]):
            src, dst = (np.ascontiguousarray(copies[start:end, at]) for at in (1, 2))
            group, src_pool, dst_pool = kinds[start].tolist()
            if src_pool == dst_pool:
                self._arena.copy(self._at[group, src_pool], src, dst)
            else:
                to = self._at[group, dst_pool]
                self._arena.convert(self._at[group, src_pool], src, to, dst)

    def write(self, group: int, ids: Int32s, digests: Tags) -> None:
        """Write the content of a group that ``digests`` stand for into blocks."""
        self._arena.write(group, ids, digests ^ self._salts[group])

    def check(self, group: int, ids: Int32s, digests: Tags) -> None:
        """Raise ``TagError`` unless each block holds what `write` put there for its digest."""
        self._arena.check(group, ids, digests ^ self._salts[group])

    def stage(self, group: int, ids: Int32s) -> None:
        """Take blocks through an offload: gather them, clear them, scatter them back."""
        staging = self._arena.offload(group, ids)
        self._arena.zero(group, ids)
        self._arena.restore(group, ids, staging)


def _scaled(words: int) -> TaggedGroup:
    layers = (1, words - 1) if words > 1 else (1,)
    return TaggedGroup(
        layer_bytes=tuple(WORD_BYTES * layer for layer in layers), block_stride=WORD_BYTES * words
    )
