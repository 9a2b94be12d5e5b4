"""Triton: one program a tile of units, either way."""

import triton
import triton.language as tl
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.gather_scatter.records import Records
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch import TRITON_UNIT_BYTES
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.triton_common import locate_units, move_runs, triton_grid


@on_its_stream
def gather_blocks(
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    max_sms: int | None,
) -> None:
    """Launch blocks to records."""
    _launch(queue, group, (ids, places), records, max_sms, gather=True)


@on_its_stream
def scatter_blocks(
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    max_sms: int | None,
) -> None:
    """Launch records to blocks."""
    _launch(queue, group, (ids, places), records, max_sms, gather=False)


def _launch(
    queue: LaunchQueue,
    group: BlockTensors,
    lists: tuple[IdList, IdList],
    records: Records,
    max_sms: int | None,
    *,
    gather: bool,
) -> None:
    ids, places = queue.on_device(lists)
    tables = group.tables(TRITON_UNIT_BYTES)
    total = tables.num_units * len(ids)
    programs, rows, warps = triton_grid(total, max_sms)
    address = records.staging.data_ptr()
    odd = address | records.granule | 16
    _move_records[(programs,)](
        tables.segments,
        tables.units,
        tables.num_units,
        ids,
        places,
        total,
        group.num_blocks,
        records.num_places,
        address,
        records.granule,
        WIDTH=min(group.alignment, odd & -odd),
        UNIT_BYTES=tables.unit_bytes,
        GATHER=gather,
        ROWS=rows,
        num_warps=warps,
    )


@triton.jit(
    do_not_specialize=["num_units", "total", "num_blocks", "num_places", "staging", "granule"]
)
def _move_records(
    segments,
    units,
    num_units,
    ids,
    places,
    total: tl.int64,
    num_blocks,
    num_places: tl.int64,
    staging: tl.int64,
    granule: tl.int64,
    WIDTH: tl.constexpr,
    UNIT_BYTES: tl.constexpr,
    GATHER: tl.constexpr,
    ROWS: tl.constexpr,
):
    step = tl.num_programs(0).to(tl.int64) * ROWS
    for begin in tl.range(tl.program_id(0).to(tl.int64) * ROWS, total, step):
        work = begin + tl.arange(0, ROWS)
        inside = work < total
        item = work // num_units
        first, stride, nbytes, offset = locate_units(
            segments, units, work % num_units, inside, UNIT_BYTES
        )
        block = tl.load(ids + item, mask=inside, other=-1).to(tl.int64)
        place = tl.load(places + item, mask=inside, other=-1).to(tl.int64)
        known = (block >= 0) & (block < num_blocks) & (place >= 0) & (place < num_places)
        nbytes = tl.where(known, nbytes, 0)
        in_block = first + block * stride
        in_record = staging + place * granule + offset
        if GATHER:
            move_runs(in_block, in_record, nbytes, WIDTH, UNIT_BYTES)
        else:
            move_runs(in_record, in_block, nbytes, WIDTH, UNIT_BYTES)
