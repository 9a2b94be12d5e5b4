"""CUDA C++: one warp a unit."""

import numpy as np
import torch
from hybrid_blocks.kernels import cuda, launch
from hybrid_blocks.kernels.blocks import BlockTensors


def zero_blocks(group: BlockTensors, ids: torch.Tensor, max_sms: int | None) -> None:
    """Launch the clearing of all listed blocks."""
    tables = group.tables(launch.CUDA_UNIT_BYTES)
    cuda.launch(
        cuda.kernel("zero_blocks", "zero_blocks"),
        launch.cuda_grid(tables.num_units * len(ids), max_sms),
        group.device,
        (
            tables.segments,
            tables.units,
            np.int32(tables.num_units),
            ids,
            np.int32(len(ids)),
            np.int32(group.num_blocks),
        ),
    )
