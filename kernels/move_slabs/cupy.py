"""CUDA C++: one warp a unit, addresses by arithmetic alone."""

import numpy as np
import torch
from hybrid_blocks.kernels import cuda, launch


def move_slabs(
    arena: torch.Tensor,
    slab_bytes: int,
    src: torch.Tensor,
    dst: torch.Tensor,
    max_sms: int | None,
) -> None:
    """Launch the copy of one list that has no slab on both sides."""
    units = -(-slab_bytes // launch.CUDA_UNIT_BYTES) * len(src)
    cuda.launch(
        cuda.kernel("move_slabs", "move_slabs"),
        launch.cuda_grid(units, max_sms),
        arena.device,
        (
            np.int64(arena.data_ptr()),
            np.int64(slab_bytes),
            np.int32(arena.numel() // slab_bytes),
            src,
            dst,
            np.int32(len(src)),
        ),
    )
