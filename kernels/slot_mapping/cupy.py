"""CUDA C++: one thread a token."""

import numpy as np
import torch
from hybrid_blocks.kernels import cuda

THREADS = 256


def slot_mapping(
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    out: torch.Tensor,
) -> None:
    """Launch all tokens at once."""
    cuda.launch(
        cuda.kernel("slot_mapping", "slot_mapping"),
        (-(-len(out) // THREADS), THREADS),
        out.device,
        (
            block_table,
            np.int64(block_table.stride(0)),
            np.int32(block_table.shape[0]),
            np.int32(block_table.shape[1]),
            query_start,
            positions,
            np.int32(len(positions)),
            np.int32(block_size),
            out,
            np.int32(len(out)),
        ),
    )
