"""Triton: one lane a token."""

import torch
import triton
import triton.language as tl
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.slot_mapping import PAD_SLOT, Batch
from hybrid_blocks.kernels.triton_common import last_not_after

LANES = 256


@on_its_stream
def slot_mapping(queue: LaunchQueue, batch: Batch, block_size: int, out: torch.Tensor) -> None:
    """Launch all tokens at once."""
    block_table, query_start, positions = batch
    num_requests = block_table.shape[0]
    _slot_mapping[(-(-len(out) // LANES),)](
        block_table,
        block_table.stride(0),
        num_requests,
        block_table.shape[1],
        query_start,
        positions,
        len(positions),
        block_size,
        out,
        len(out),
        PAD=PAD_SLOT,
        STEPS=num_requests.bit_length(),
        LANES=LANES,
    )


@triton.jit(
    do_not_specialize=[
        "row_stride",
        "num_requests",
        "num_columns",
        "num_tokens",
        "block_size",
        "num_slots",
    ]
)
def _slot_mapping(
    block_table,
    row_stride: tl.int64,
    num_requests,
    num_columns,
    query_start,
    positions,
    num_tokens,
    block_size,
    out,
    num_slots,
    PAD: tl.constexpr,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
):
    token = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = (token < num_tokens) & (token >= tl.load(query_start))
    inside = inside & (token < tl.load(query_start + num_requests))
    request = last_not_after(query_start, num_requests, token, inside, STEPS).to(tl.int64)
    position = tl.load(positions + token, mask=inside, other=-1)
    column = position // block_size
    inside = inside & (position >= 0) & (column < num_columns)
    block = tl.load(block_table + request * row_stride + column, mask=inside, other=0)
    slot = block.to(tl.int64) * block_size + position % block_size
    tl.store(out + token, tl.where(inside, slot, PAD), mask=token < num_slots)
