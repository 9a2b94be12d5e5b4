"""The reference: one torch copy a block and segment."""

from collections.abc import Iterator

import torch
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.gather_scatter.records import Records
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream


@on_its_stream
def gather_blocks(
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    max_sms: int | None,
) -> None:
    """Fill the records one by one, skipping padding."""
    for in_block, in_record in _pairs(group, ids, records, places):
        in_record.copy_(in_block)


@on_its_stream
def scatter_blocks(
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    max_sms: int | None,
) -> None:
    """Fill the blocks one by one, skipping padding."""
    for in_block, in_record in _pairs(group, ids, records, places):
        in_block.copy_(in_record)


def _pairs(
    group: BlockTensors, ids: IdList, records: Records, places: IdList
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each run of bytes of each block beside its place in the block's record."""
    flat = records.staging.reshape(-1)
    runs = [
        (run, offset, offset + run.shape[1])
        for run, offset in zip(group.byte_views(), group.segments[:, 3].tolist(), strict=True)
    ]
    for block, place in zip(ids.tolist(), places.tolist(), strict=True):
        if 0 <= block < group.num_blocks and 0 <= place < records.num_places:
            start = place * records.granule
            for run, first, last in runs:
                yield run[block], flat[start + first : start + last]
