"""Triton: one program a tile of units."""

import triton
import triton.language as tl
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch import TRITON_UNIT_BYTES
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.triton_common import locate_units, triton_grid, zero_runs


@on_its_stream
def zero_blocks(queue: LaunchQueue, group: BlockTensors, ids: IdList, max_sms: int | None) -> None:
    """Launch the clearing of all listed blocks."""
    (device_ids,) = queue.on_device((ids,))
    tables = group.tables(TRITON_UNIT_BYTES)
    total = tables.num_units * len(ids)
    programs, rows, warps = triton_grid(total, max_sms)
    _zero_blocks[(programs,)](
        tables.segments,
        tables.units,
        tables.num_units,
        device_ids,
        total,
        group.num_blocks,
        WIDTH=group.alignment,
        UNIT_BYTES=tables.unit_bytes,
        ROWS=rows,
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["num_units", "total", "num_blocks"])
def _zero_blocks(
    segments,
    units,
    num_units,
    ids,
    total: tl.int64,
    num_blocks,
    WIDTH: tl.constexpr,
    UNIT_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    step = tl.num_programs(0).to(tl.int64) * ROWS
    for begin in tl.range(tl.program_id(0).to(tl.int64) * ROWS, total, step):
        work = begin + tl.arange(0, ROWS)
        inside = work < total
        first, stride, nbytes, _ = locate_units(
            segments, units, work % num_units, inside, UNIT_BYTES
        )
        block = tl.load(ids + work // num_units, mask=inside, other=-1).to(tl.int64)
        nbytes = tl.where((block >= 0) & (block < num_blocks), nbytes, 0)
        zero_runs(first + block * stride, nbytes, WIDTH, UNIT_BYTES)
