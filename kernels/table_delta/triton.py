"""Triton: one lane an entry."""

import torch
import triton
import triton.language as tl
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.table_delta import Delta
from hybrid_blocks.kernels.triton_common import last_not_after

LANES = 256


@on_its_stream
def apply_table_delta(queue: LaunchQueue, table: torch.Tensor, delta: Delta) -> None:
    """Launch all runs at once."""
    rows, starts, offsets, block_ids = queue.on_device(delta)
    _apply_table_delta[(-(-len(block_ids) // LANES),)](
        table,
        table.stride(0),
        table.shape[0],
        table.shape[1],
        rows,
        starts,
        offsets,
        len(rows),
        block_ids,
        len(block_ids),
        STEPS=len(rows).bit_length(),
        LANES=LANES,
    )


@triton.jit(do_not_specialize=["row_stride", "num_rows", "num_columns", "num_runs", "num_entries"])
def _apply_table_delta(
    table,
    row_stride: tl.int64,
    num_rows,
    num_columns,
    rows,
    starts,
    offsets,
    num_runs,
    block_ids,
    num_entries,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
):
    entry = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = (entry < num_entries) & (entry < tl.load(offsets + num_runs))
    run = last_not_after(offsets, num_runs, entry, inside, STEPS)
    row = tl.load(rows + run, mask=inside, other=-1).to(tl.int64)
    start = tl.load(starts + run, mask=inside, other=0).to(tl.int64)
    column = start + (entry - tl.load(offsets + run, mask=inside, other=0))
    inside = inside & (row >= 0) & (row < num_rows) & (column >= 0) & (column < num_columns)
    value = tl.load(block_ids + entry, mask=inside)
    tl.store(table + row * row_stride + column, value, mask=inside)
