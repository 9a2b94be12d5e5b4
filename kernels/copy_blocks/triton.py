"""Triton: one program a unit."""

import torch
import triton
import triton.language as tl
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.triton_common import locate_unit, move_run, triton_grid, unit_bytes


def copy_blocks(
    group: BlockTensors, src: torch.Tensor, dst: torch.Tensor, max_sms: int | None
) -> None:
    """Launch the copy of one list that has no id on both sides."""
    tables = group.tables(unit_bytes(max_sms))
    total = tables.num_units * len(src)
    programs, warps = triton_grid(total, max_sms)
    _copy_blocks[(programs,)](
        tables.segments,
        tables.units,
        tables.num_units,
        src,
        dst,
        total,
        group.num_blocks,
        WIDTH=group.alignment,
        UNIT_BYTES=tables.unit_bytes,
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["num_units", "total", "num_blocks"])
def _copy_blocks(
    segments,
    units,
    num_units,
    src,
    dst,
    total: tl.int64,
    num_blocks,
    WIDTH: tl.constexpr,
    UNIT_BYTES: tl.constexpr,
):
    for work in tl.range(tl.program_id(0).to(tl.int64), total, tl.num_programs(0)):
        item = work // num_units
        first, stride, nbytes, _ = locate_unit(segments, units, work % num_units, UNIT_BYTES)
        source = tl.load(src + item).to(tl.int64)
        target = tl.load(dst + item).to(tl.int64)
        if (source >= 0) & (source < num_blocks) & (target >= 0) & (target < num_blocks):
            move_run(first + source * stride, first + target * stride, nbytes, WIDTH, UNIT_BYTES)
