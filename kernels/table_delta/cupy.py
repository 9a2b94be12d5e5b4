"""CUDA C++: one thread an entry."""

import numpy as np
import torch
from hybrid_blocks.kernels import cuda

THREADS = 256


def apply_table_delta(
    table: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    offsets: torch.Tensor,
    block_ids: torch.Tensor,
) -> None:
    """Launch all runs at once."""
    cuda.launch(
        cuda.kernel("table_delta", "table_delta"),
        (-(-len(block_ids) // THREADS), THREADS),
        table.device,
        (
            table,
            np.int64(table.stride(0)),
            np.int32(table.shape[0]),
            np.int32(table.shape[1]),
            rows,
            starts,
            offsets,
            np.int32(len(rows)),
            block_ids,
            np.int32(len(block_ids)),
        ),
    )
