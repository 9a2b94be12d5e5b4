"""The reference: one torch copy a block and segment."""

from collections.abc import Iterator

import torch
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream


@on_its_stream
def gather_blocks(
    queue: LaunchQueue, group: BlockTensors, ids: IdList, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Fill the records one by one, skipping padding."""
    for in_block, in_record in _pairs(group, ids, staging):
        in_record.copy_(in_block)


@on_its_stream
def scatter_blocks(
    queue: LaunchQueue, group: BlockTensors, ids: IdList, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Fill the blocks one by one, skipping padding."""
    for in_block, in_record in _pairs(group, ids, staging):
        in_block.copy_(in_record)


def _pairs(
    group: BlockTensors, ids: IdList, staging: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each run of bytes of each block beside its place in the block's record."""
    flat = staging.reshape(-1)
    runs = group.byte_views()
    offsets = group.segments[:, 3].tolist()
    for i, block in enumerate(ids.tolist()):
        if 0 <= block < group.num_blocks:
            for run, offset in zip(runs, offsets, strict=True):
                start = i * group.record_bytes + offset
                yield run[block], flat[start : start + run.shape[1]]
