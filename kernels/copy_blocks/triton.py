"""Triton: one program a tile of units; a program owns a unit across a list that has an order."""

import triton
import triton.language as tl
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.launch import MAX_GRID, TRITON_UNIT_BYTES
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.moves import Moves
from hybrid_blocks.kernels.triton_common import (
    lanes_of,
    locate_unit,
    locate_units,
    move_runs,
    triton_grid,
)


@on_its_stream
def copy_blocks(queue: LaunchQueue, group: BlockTensors, moves: Moves, max_sms: int | None) -> None:
    """Launch the moves: in any order, or with the part that has an order beside the rest."""
    tables = group.tables(TRITON_UNIT_BYTES)
    for host_src, host_dst, ordered in moves.launches():
        src, dst = queue.on_device((host_src, host_dst))
        total = tables.num_units * (len(src) - ordered)
        walks = tables.num_units if ordered else 0
        tiles, rows, warps = triton_grid(total, None if max_sms is None else MAX_GRID)
        programs = min(walks + tiles, max_sms or MAX_GRID)
        _copy_blocks[(programs,)](
            tables.segments,
            tables.units,
            tables.num_units,
            src,
            dst,
            total,
            ordered,
            walks,
            group.num_blocks,
            ORDERED=ordered > 0,
            WIDTH=group.alignment,
            UNIT_BYTES=tables.unit_bytes,
            ROWS=rows,
            num_warps=warps,
        )


@triton.jit(do_not_specialize=["num_units", "total", "num_ordered", "walks", "num_blocks"])
def _copy_blocks(
    segments,
    units,
    num_units,
    src,
    dst,
    total: tl.int64,
    num_ordered,
    walks,
    num_blocks,
    ORDERED: tl.constexpr,
    WIDTH: tl.constexpr,
    UNIT_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    free_src = src + num_ordered
    free_dst = dst + num_ordered
    pieces = walks + (total + ROWS - 1) // ROWS
    for piece in tl.range(tl.program_id(0).to(tl.int64), pieces, tl.num_programs(0)):
        if ORDERED:
            if piece < walks:
                _walk_list(segments, units, piece, src, dst, num_ordered, WIDTH, UNIT_BYTES)
            else:
                work = (piece - walks) * ROWS + tl.arange(0, ROWS)
                _copy_tile(
                    segments,
                    units,
                    num_units,
                    free_src,
                    free_dst,
                    work,
                    total,
                    num_blocks,
                    WIDTH,
                    UNIT_BYTES,
                )
        else:
            work = piece * ROWS + tl.arange(0, ROWS)
            _copy_tile(
                segments, units, num_units, src, dst, work, total, num_blocks, WIDTH, UNIT_BYTES
            )


@triton.jit
def _copy_tile(
    segments,
    units,
    num_units,
    src,
    dst,
    work,
    total,
    num_blocks,
    WIDTH: tl.constexpr,
    UNIT_BYTES: tl.constexpr,
):
    """Move a tile of units, each of some block."""
    inside = work < total
    item = work // num_units
    first, stride, nbytes, _offset = locate_units(
        segments, units, work % num_units, inside, UNIT_BYTES
    )
    source = tl.load(src + item, mask=inside, other=-1).to(tl.int64)
    target = tl.load(dst + item, mask=inside, other=-1).to(tl.int64)
    known = (source >= 0) & (source < num_blocks) & (target >= 0) & (target < num_blocks)
    nbytes = tl.where(known, nbytes, 0)
    move_runs(first + source * stride, first + target * stride, nbytes, WIDTH, UNIT_BYTES)


@triton.jit
def _walk_list(
    segments, units, unit, src, dst, num_ordered, WIDTH: tl.constexpr, UNIT_BYTES: tl.constexpr
):
    """Carry the pairs out one after another on one unit of every block."""
    first, stride, nbytes, _offset = locate_unit(segments, units, unit, UNIT_BYTES)
    for i in tl.range(0, num_ordered, num_stages=1):
        # What a lane reads now, another may have written before.
        tl.debug_barrier()
        listed = tl.load(src + i).to(tl.int64)
        source = tl.where(listed < 0, -1 - listed, listed)
        target = tl.load(dst + i).to(tl.int64)
        from_, inside = lanes_of(first + source * stride, nbytes, WIDTH, UNIT_BYTES)
        to, _inside = lanes_of(first + target * stride, nbytes, WIDTH, UNIT_BYTES)
        value = tl.load(from_, mask=inside)
        if listed < 0:  # the two blocks trade places
            old = tl.load(to, mask=inside)
            tl.debug_barrier()
            tl.store(from_, old, mask=inside)
        tl.store(to, value, mask=inside)
