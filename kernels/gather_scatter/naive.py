"""The reference: one copy a block and run of bytes."""

from collections.abc import Iterator
from typing import Any

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
    for run, rows, known in _parts(group, ids, records, places):
        for block, place in known:
            rows[place] = run[block]


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
    for run, rows, known in _parts(group, ids, records, places):
        for block, place in known:
            run[block] = rows[place]


def _parts(
    group: BlockTensors, ids: IdList, records: Records, places: IdList
) -> Iterator[tuple[Any, Any, list[tuple[int, int]]]]:
    """Yield a run of every block, the same of every record, and which of both are paired.

    On the CPU they are NumPy's: it has copied a short row before torch begins.
    """
    pairs = zip(ids.tolist(), places.tolist(), strict=True)
    inside, fits = range(group.num_blocks), range(records.num_places)
    known = [pair for pair in pairs if pair[0] in inside and pair[1] in fits]
    staging = records.staging
    for run, first in zip(group.byte_views(), group.segments[:, 3].tolist(), strict=True):
        begin = staging.storage_offset() + first
        shape, strides = (records.num_places, run.shape[1]), (records.granule, 1)
        rows = staging.as_strided(shape, strides, begin)
        both = (run.numpy(), rows.numpy()) if group.device.type == "cpu" else (run, rows)
        yield *both, known
