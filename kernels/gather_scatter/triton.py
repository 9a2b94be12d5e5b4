"""Triton: one program a unit, either way."""

import torch
import triton
import triton.language as tl
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.triton_common import locate_unit, move_run, triton_grid, unit_bytes


def gather_blocks(
    group: BlockTensors, ids: torch.Tensor, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Launch blocks to records."""
    _launch(group, ids, staging, max_sms, gather=True)


def scatter_blocks(
    group: BlockTensors, ids: torch.Tensor, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Launch records to blocks."""
    _launch(group, ids, staging, max_sms, gather=False)


def _launch(
    group: BlockTensors,
    ids: torch.Tensor,
    staging: torch.Tensor,
    max_sms: int | None,
    *,
    gather: bool,
) -> None:
    tables = group.tables(unit_bytes(max_sms))
    total = tables.num_units * len(ids)
    programs, warps = triton_grid(total, max_sms)
    address = staging.data_ptr() | 16
    _move_records[(programs,)](
        tables.segments,
        tables.units,
        tables.num_units,
        ids,
        total,
        group.num_blocks,
        staging.data_ptr(),
        group.record_bytes,
        WIDTH=min(group.alignment, address & -address),
        UNIT_BYTES=tables.unit_bytes,
        GATHER=gather,
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["num_units", "total", "num_blocks", "staging", "record_bytes"])
def _move_records(
    segments,
    units,
    num_units,
    ids,
    total: tl.int64,
    num_blocks,
    staging: tl.int64,
    record_bytes: tl.int64,
    WIDTH: tl.constexpr,
    UNIT_BYTES: tl.constexpr,
    GATHER: tl.constexpr,
):
    for work in tl.range(tl.program_id(0).to(tl.int64), total, tl.num_programs(0)):
        item = work // num_units
        first, stride, nbytes, offset = locate_unit(segments, units, work % num_units, UNIT_BYTES)
        block = tl.load(ids + item).to(tl.int64)
        if (block >= 0) & (block < num_blocks):
            in_block = first + block * stride
            in_record = staging + item * record_bytes + offset
            if GATHER:
                move_run(in_block, in_record, nbytes, WIDTH, UNIT_BYTES)
            else:
                move_run(in_record, in_block, nbytes, WIDTH, UNIT_BYTES)
