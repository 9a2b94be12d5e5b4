"""CUDA C++: one thread an entry."""

import torch
from hybrid_blocks.kernels import cuda
from hybrid_blocks.kernels.launch_queue import LaunchQueue
from hybrid_blocks.kernels.table_delta import Delta

THREADS = 256


def apply_table_delta(queue: LaunchQueue, table: torch.Tensor, delta: Delta) -> None:
    """Launch all runs at once."""
    with queue.lock:
        rows, starts, offsets, block_ids = queue.addresses(delta)
        cuda.shared(queue, "table_delta", "table_delta", PARAMETERS)(
            (),
            (-(-len(delta.block_ids) // THREADS), THREADS),
            table=table.data_ptr(),
            row_stride=table.stride(0),
            num_rows=table.shape[0],
            num_columns=table.shape[1],
            rows=rows,
            starts=starts,
            offsets=offsets,
            num_runs=len(delta.rows),
            block_ids=block_ids,
            num_entries=len(delta.block_ids),
        )


PARAMETERS: list[cuda.Parameter] = [
    ("table", "u8", None),
    ("row_stride", "i8", None),
    ("num_rows", "i4", None),
    ("num_columns", "i4", None),
    ("rows", "u8", None),
    ("starts", "u8", None),
    ("offsets", "u8", None),
    ("num_runs", "i4", None),
    ("block_ids", "u8", None),
    ("num_entries", "i4", None),
]
