"""An arena of small tagged blocks: proof that every request reads the state it wrote.

A manager says where state lies and which copies to make; here the copies really run, through
``hybrid_blocks.kernels``, on blocks whose words are derived from a tag. Reading a block back with
another tag than it was written under is an error that names both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hybrid_blocks.kernels import (
    BlockTensors,
    copy_blocks,
    gather_blocks,
    scatter_blocks,
)

Int32s = npt.NDArray[np.int32]
Tags = npt.NDArray[np.uint64]

WORD_BYTES = 8
UNWRITTEN = 0xFF  # every byte of a new arena


class TagError(AssertionError):
    """A block does not hold the state that was written to it.

    ``at`` is its index in the list of blocks that were checked.
    """

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True, slots=True)
class TaggedGroup:
    """How one group cuts the arena: block ``i`` begins at byte ``i * block_stride``.

    ``layer_bytes`` are the bytes of each tensor of a block, which lie one after another.
    Local ids (``slab * blocks_per_slab + index``) have ``block_stride = slab_bytes /
    blocks_per_slab``; granule ids have the granule as their stride, and blocks wider than it.
    """

    layer_bytes: tuple[int, ...]
    block_stride: int

    def __post_init__(self) -> None:
        for size in (*self.layer_bytes, self.block_stride):
            if size < WORD_BYTES or size % WORD_BYTES:
                raise ValueError(f"{size} bytes are not whole words of {WORD_BYTES} bytes")


class TaggedArena:
    """``num_slabs`` slabs on the CPU with a strided view of every group."""

    def __init__(
        self,
        num_slabs: int,
        slab_bytes: int,
        groups: Sequence[TaggedGroup],
    ) -> None:
        self.bytes = torch.full((num_slabs * slab_bytes,), UNWRITTEN, dtype=torch.uint8)
        words = self.bytes.view(torch.int64)
        self.groups = [_views(words, geometry) for geometry in groups]
        self._masks = [_masks(geometry) for geometry in groups]

    def write(self, group: int, ids: Int32s, tags: Tags) -> None:
        """Fill block ``ids[i]`` of ``group``, all layers, with the words of ``tags[i]``."""
        rows = torch.from_numpy(ids.astype(np.int64))
        signed = torch.from_numpy(tags.view(np.int64).copy())
        for tensor, mask in zip(self.groups[group].tensors, self._masks[group], strict=True):
            tensor[rows] = signed[:, None] ^ mask

    def check(self, group: int, ids: Int32s, tags: Tags) -> None:
        """Raise ``TagError`` unless block ``ids[i]`` still holds the words of ``tags[i]``."""
        rows = torch.from_numpy(ids.astype(np.int64))
        signed = torch.from_numpy(tags.view(np.int64).copy())
        layers = zip(self.groups[group].tensors, self._masks[group], strict=True)
        for layer, (tensor, mask) in enumerate(layers):
            held = tensor[rows] ^ mask
            wrong = held != signed[:, None]
            if wrong.any():
                at, word = (int(i) for i in wrong.nonzero()[0])
                raise TagError(
                    f"group {group} block {ids[at]} layer {layer} word {word}: written under tag "
                    f"{int(tags[at]):#x}, holds tag {int(held[at, word]) % 2**64:#x}",
                    at,
                )

    def copy(self, group: int, src: Int32s, dst: Int32s) -> None:
        """Carry out a copy list of ``group``: forks, copies on write, moved blocks."""
        copy_blocks(self.groups[group], src, dst)

    def convert(self, group: int, src: Int32s, to_group: int, dst: Int32s) -> None:
        """Write what blocks of a group hold into blocks of another one."""
        first, mask = self.groups[group].tensors[0], self._masks[group][0]
        words = (first[torch.from_numpy(src.astype(np.int64)), 0] ^ mask[0]).numpy()
        tags = words.view(np.uint64)
        self.check(group, src, tags)
        self.write(to_group, dst, tags)

    def zero(self, group: int, ids: Int32s) -> None:
        """Clear blocks of ``group``."""
        for tensor in self.groups[group].tensors:
            tensor[ids.tolist()] = 0

    def offload(self, group: int, ids: Int32s) -> torch.Tensor:
        """Return the blocks' records in a new staging buffer."""
        size = self.groups[group].record_bytes
        staging = torch.full((len(ids) * size,), UNWRITTEN, dtype=torch.uint8)
        gather_blocks(self.groups[group], ids, staging, _in_turn(ids), size)
        return staging

    def restore(self, group: int, ids: Int32s, staging: torch.Tensor) -> None:
        """Write the records of ``staging`` to the blocks ``ids``."""
        size = self.groups[group].record_bytes
        scatter_blocks(self.groups[group], ids, staging, _in_turn(ids), size)


def _in_turn(ids: Int32s) -> Int32s:
    return np.arange(len(ids), dtype=np.int32)


def _views(words: torch.Tensor, geometry: TaggedGroup) -> BlockTensors:
    stride = geometry.block_stride // WORD_BYTES
    layers = [size // WORD_BYTES for size in geometry.layer_bytes]
    # The last ids of a view in granules would reach beyond the arena.
    num_blocks = (len(words) - sum(layers)) // stride + 1
    starts = np.cumsum([0, *layers[:-1]]).tolist()
    return BlockTensors(
        [
            words.as_strided((num_blocks, length), (stride, 1), start)
            for start, length in zip(starts, layers, strict=True)
        ]
    )


def _masks(geometry: TaggedGroup) -> list[torch.Tensor]:
    """Return the words that a tag is combined with, different at every place of a block."""
    rng = np.random.default_rng(0)
    return [
        torch.from_numpy(rng.integers(-(2**63), 2**63, size // WORD_BYTES, dtype=np.int64))
        for size in geometry.layer_bytes
    ]
