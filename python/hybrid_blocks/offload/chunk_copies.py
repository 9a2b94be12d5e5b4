"""Copies between the blocks of a cache and the region's chunks, by this package's kernels."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.kernels import BlockTensors, gather_blocks, scatter_blocks
from hybrid_blocks.kernels.cuda import INLINE_PAIRS
from hybrid_blocks.kernels.gather_scatter.records import Records
from hybrid_blocks.kernels.ids import Int32s

GRANULE: Final = 4096
"""A chunk begins at a multiple of this: ``SLOT_ALIGNMENT`` of the core's ``HostGeometry``."""


class ChunkCopies:
    """The blocks of each group, and the share of a rank in the region's chunks.

    A chunk holds the shares of all ranks, and a share the block's layers one after another. One
    launch copies all layers and blocks of a group. ``rank_bytes`` are a share's bytes by group.
    """

    def __init__(self, kv_caches: CanonicalKVCaches, memory: torch.Tensor, rank: int) -> None:
        """Describe the blocks; ``memory`` is the region as ``uint8``."""
        pages = [
            tensor.tensor.view(torch.int8).view(-1, tensor.page_size_bytes)
            for tensor in kv_caches.tensors
        ]
        # By group: tensors that are copied together, and where they lie in a share.
        self._groups: list[list[tuple[BlockTensors, int]]] = []
        self.rank_bytes: list[int] = []
        for refs in kv_caches.group_data_refs:
            rows = [pages[ref.tensor_idx][:, : ref.page_size_bytes] for ref in refs]
            self._groups.append(_described(rows))
            self.rank_bytes.append(sum(ref.page_size_bytes for ref in refs))
        self._shares = [memory[rank * num_bytes :] for num_bytes in self.rank_bytes]

    def store(self, group: int, blocks: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> None:
        """Copy blocks to the chunks that begin at ``offsets`` of the region."""
        for tensors, ids, share, places in self._parts(group, blocks, offsets):
            gather_blocks(tensors, ids, share, places, GRANULE)

    def load(self, group: int, blocks: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> None:
        """Copy the chunks that begin at ``offsets`` of the region to blocks."""
        for tensors, ids, share, places in self._parts(group, blocks, offsets):
            scatter_blocks(tensors, ids, share, places, GRANULE)

    def _parts(
        self, group: int, blocks: npt.NDArray[Any], offsets: npt.NDArray[Any]
    ) -> Iterator[tuple[BlockTensors, Int32s, torch.Tensor, Int32s]]:
        """Yield lists that travel in a launch's parameters, so that no stream holds memory."""
        places, rest = np.divmod(offsets, GRANULE)
        if rest.any() or (len(places) and places.max() > np.iinfo(np.int32).max):
            raise HybridBlocksError(
                f"a chunk begins at byte {offsets.max()} of the region, which is no place of "
                f"{GRANULE} bytes; please report this"
            )
        ids, places = blocks.astype(np.int32), places.astype(np.int32)
        for tensors, at in self._groups[group]:
            for begin in range(0, len(ids), INLINE_PAIRS):
                part = slice(begin, begin + INLINE_PAIRS)
                yield tensors, ids[part], self._shares[group][at:], places[part]

    def try_out(self, memory: torch.Tensor) -> None:
        """Let random bytes go to block 0 of each group and back, through pinned ``memory``.

        Block 0 is in no request's table; it has its own bytes afterwards.

        Raises:
            RuntimeError: other bytes came back.
        """
        first = np.zeros(1, np.int32)
        for parts, share in zip(self._groups, self._shares, strict=True):
            for tensors, at in parts:
                Records(tensors, share[at:], GRANULE)  # the device reaches the region
                record = memory[: tensors.record_bytes]
                gather_blocks(tensors, first, record, first, 1)
                before = _settled(record).clone()
                sent = torch.randint_like(record, 0, 256)
                scatter_blocks(tensors, first, record.copy_(sent), first, 1)
                _settled(record).zero_()
                gather_blocks(tensors, first, record, first, 1)
                is_right = torch.equal(_settled(record), sent)
                scatter_blocks(tensors, first, record.copy_(before), first, 1)
                _settled(record)
                if not is_right:
                    raise RuntimeError(f"{len(sent)} bytes came back from the device as others")

    @property
    def largest_record(self) -> int:
        """Bytes of the largest share that one launch copies."""
        return max((it.record_bytes for parts in self._groups for it, _ in parts), default=0)

    def close(self) -> None:
        """Let go of the region."""
        self._shares.clear()


def _settled(memory: torch.Tensor) -> torch.Tensor:
    """Return host memory once the device is done with it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return memory


def _described(rows: list[torch.Tensor]) -> list[tuple[BlockTensors, int]]:
    """Return all layers as one group, or each as one of its own where their bytes meet."""
    with torch.inference_mode(mode=False):
        try:
            whole = BlockTensors(rows)
        except ValueError:
            ends = np.cumsum([0, *(row.shape[1] for row in rows)]).tolist()
            return [(BlockTensors([row]), at) for row, at in zip(rows, ends, strict=False)]
        return [(whole, 0)]
