"""Triton: one program a unit."""

import torch
import triton
import triton.language as tl
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.triton_common import locate_unit, triton_grid, unit_bytes, zero_run


def zero_blocks(group: BlockTensors, ids: torch.Tensor, max_sms: int | None) -> None:
    """Launch the clearing of all listed blocks."""
    tables = group.tables(unit_bytes(max_sms))
    total = tables.num_units * len(ids)
    programs, warps = triton_grid(total, max_sms)
    _zero_blocks[(programs,)](
        tables.segments,
        tables.units,
        tables.num_units,
        ids,
        total,
        group.num_blocks,
        WIDTH=group.alignment,
        UNIT_BYTES=tables.unit_bytes,
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
):
    for work in tl.range(tl.program_id(0).to(tl.int64), total, tl.num_programs(0)):
        first, stride, nbytes, _ = locate_unit(segments, units, work % num_units, UNIT_BYTES)
        block = tl.load(ids + work // num_units).to(tl.int64)
        if (block >= 0) & (block < num_blocks):
            zero_run(first + block * stride, nbytes, WIDTH, UNIT_BYTES)
