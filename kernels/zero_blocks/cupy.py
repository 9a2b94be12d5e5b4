"""CUDA C++ by CuPy: one warp a unit."""

from hybrid_blocks.kernels import cuda, launch
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue


def zero_blocks(queue: LaunchQueue, group: BlockTensors, ids: IdList, max_sms: int | None) -> None:
    """Launch the clearing of all listed blocks."""
    run = cuda.prepared(group, queue, "zero_blocks", "zero_blocks", _parameters)
    run((ids,), launch.cuda_grid(run.num_units * len(ids), max_sms), num_items=len(ids))


def _parameters(group: BlockTensors) -> list[cuda.Parameter]:
    return [
        *cuda.tables_of(group),
        ("ids", cuda.IDS, None),
        ("num_items", "i4", None),
        ("num_blocks", "i4", group.num_blocks),
    ]
