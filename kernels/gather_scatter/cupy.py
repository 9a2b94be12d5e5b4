"""CUDA C++: one warp a unit; pinned host memory is read and written in 512-byte rows."""

import numpy as np
import torch
from hybrid_blocks.kernels import cuda, launch
from hybrid_blocks.kernels.blocks import BlockTensors


def gather_blocks(
    group: BlockTensors, ids: torch.Tensor, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Launch blocks to records."""
    _launch("gather_blocks", group, ids, staging, max_sms)


def scatter_blocks(
    group: BlockTensors, ids: torch.Tensor, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Launch records to blocks."""
    _launch("scatter_blocks", group, ids, staging, max_sms)


def _launch(
    name: str, group: BlockTensors, ids: torch.Tensor, staging: torch.Tensor, max_sms: int | None
) -> None:
    tables = group.tables(launch.CUDA_UNIT_BYTES)
    cuda.launch(
        cuda.kernel("gather_scatter", name),
        launch.cuda_grid(tables.num_units * len(ids), max_sms),
        group.device,
        (
            tables.segments,
            tables.units,
            np.int32(tables.num_units),
            ids,
            np.int32(len(ids)),
            np.int32(group.num_blocks),
            np.int64(staging.data_ptr()),
            np.int64(group.record_bytes),
        ),
    )
