"""CUDA C++ by CuPy: one warp a unit, eight 16-byte loads in flight in each lane."""

from hybrid_blocks.kernels import cuda, launch
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.launch_queue import LaunchQueue
from hybrid_blocks.kernels.moves import Moves

PIECES_A_UNIT = launch.CUDA_UNIT_BYTES // 512  # as in copy_blocks.cu: 16 bytes a lane


def copy_blocks(queue: LaunchQueue, group: BlockTensors, moves: Moves, max_sms: int | None) -> None:
    """Launch the moves: in any order, or with the part that has an order beside the rest."""
    for src, dst, ordered in moves.launches():
        count = len(src)
        if ordered:
            run = cuda.prepared(group, queue, "copy_blocks", "copy_in_order", _ordered)
            units = run.num_units * (PIECES_A_UNIT + count - ordered)
            grid = launch.cuda_grid(units, max_sms)
            run((src, dst), grid, num_items=count, num_ordered=ordered)
        else:
            run = cuda.prepared(group, queue, "copy_blocks", "copy_blocks", _free)
            grid = launch.cuda_grid(run.num_units * count, max_sms)
            run((src, dst), grid, num_items=count)


def _free(group: BlockTensors) -> list[cuda.Parameter]:
    return [
        *cuda.tables_of(group),
        ("pairs", cuda.PAIRS, None),
        ("num_items", "i4", None),
        ("num_blocks", "i4", group.num_blocks),
    ]


def _ordered(group: BlockTensors) -> list[cuda.Parameter]:
    free = _free(group)
    return [*free[:-1], ("num_ordered", "i4", None), free[-1]]
