"""CUDA C++ by CuPy: one warp a unit; pinned host memory is read and written in 512-byte rows."""

import torch
from hybrid_blocks.kernels import cuda, launch
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue


def gather_blocks(
    queue: LaunchQueue, group: BlockTensors, ids: IdList, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Launch blocks to records."""
    _launch("gather_blocks", queue, group, ids, staging, max_sms)


def scatter_blocks(
    queue: LaunchQueue, group: BlockTensors, ids: IdList, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Launch records to blocks."""
    _launch("scatter_blocks", queue, group, ids, staging, max_sms)


def _launch(
    name: str,
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    staging: torch.Tensor,
    max_sms: int | None,
) -> None:
    run = cuda.prepared(group, queue, "gather_scatter", name, _parameters)
    grid = launch.cuda_grid(run.num_units * len(ids), max_sms)
    run((ids,), grid, num_items=len(ids), staging=staging.data_ptr())


def _parameters(group: BlockTensors) -> list[cuda.Parameter]:
    return [
        *cuda.tables_of(group),
        ("ids", cuda.IDS, None),
        ("num_items", "i4", None),
        ("num_blocks", "i4", group.num_blocks),
        ("staging", "u8", None),
        ("record_bytes", "i8", group.record_bytes),
    ]
