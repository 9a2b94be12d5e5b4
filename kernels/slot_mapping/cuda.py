"""CUDA C++: one thread a token."""

import torch
from hybrid_blocks.kernels import cuda
from hybrid_blocks.kernels.launch_queue import LaunchQueue
from hybrid_blocks.kernels.slot_mapping import Batch

THREADS = 256


def slot_mapping(queue: LaunchQueue, batch: Batch, block_size: int, out: torch.Tensor) -> None:
    """Launch all tokens at once."""
    cuda.shared(queue, "slot_mapping", "slot_mapping", PARAMETERS)(
        (),
        (-(-len(out) // THREADS), THREADS),
        block_table=batch.block_table.data_ptr(),
        row_stride=batch.block_table.stride(0),
        num_requests=batch.block_table.shape[0],
        num_columns=batch.block_table.shape[1],
        query_start=batch.query_start.data_ptr(),
        positions=batch.positions.data_ptr(),
        num_tokens=len(batch.positions),
        block_size=block_size,
        out=out.data_ptr(),
        num_slots=len(out),
    )


PARAMETERS: list[cuda.Parameter] = [
    ("block_table", "u8", None),
    ("row_stride", "i8", None),
    ("num_requests", "i4", None),
    ("num_columns", "i4", None),
    ("query_start", "u8", None),
    ("positions", "u8", None),
    ("num_tokens", "i4", None),
    ("block_size", "i4", None),
    ("out", "u8", None),
    ("num_slots", "i4", None),
]
