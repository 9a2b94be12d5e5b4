"""CUDA C++: one warp a unit, eight 16-byte loads in flight in each lane."""

import numpy as np
import torch
from hybrid_blocks.kernels import cuda, launch
from hybrid_blocks.kernels.blocks import BlockTensors


def copy_blocks(
    group: BlockTensors, src: torch.Tensor, dst: torch.Tensor, max_sms: int | None
) -> None:
    """Launch the copy of one list that has no id on both sides."""
    tables = group.tables(launch.CUDA_UNIT_BYTES)
    cuda.launch(
        cuda.kernel("copy_blocks", "copy_blocks"),
        launch.cuda_grid(tables.num_units * len(src), max_sms),
        group.device,
        (
            tables.segments,
            tables.units,
            np.int32(tables.num_units),
            src,
            dst,
            np.int32(len(src)),
            np.int32(group.num_blocks),
        ),
    )
