"""CUDA C++ by CuPy: one thread block a head, which its threads hold in registers."""

from hybrid_blocks.kernels import cuda, launch
from hybrid_blocks.kernels.convert_states.pools import StatePools
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue

# As in convert_states.cu.
MAX_THREADS = 512
NUMBERS_A_THREAD = 32
FORMATS = {"bf16": 1, "fp8": 2, "int8": 3}


def convert_states(
    queue: LaunchQueue, pools: StatePools, src: IdList, dst: IdList, keeps: bool
) -> None:
    """Launch the conversions."""
    name = "keep_states" if keeps else "restore_states"
    run = cuda.prepared(pools, queue, "convert_states", name, _parameters)
    threads, pieces = _shape(pools)
    total = len(src) * pools.num_layers * pieces
    run((src, dst), (min(total, launch.MAX_GRID), threads), num_items=len(src))


def _shape(pools: StatePools) -> tuple[int, int]:
    """Return threads a block, and pieces of a layer's state: its heads, and the bytes before."""
    layout = pools.layout
    warps = -(-layout.numbers // (NUMBERS_A_THREAD * launch.WARP))
    threads = min(warps * launch.WARP, MAX_THREADS)
    moved = threads // launch.WARP * launch.CUDA_UNIT_BYTES
    return threads, layout.heads + -(-layout.num_same // moved)


def _parameters(pools: StatePools) -> list[cuda.Parameter]:
    layout = pools.layout
    _, pieces = _shape(pools)
    return [
        ("pages", "u8", pools.table().data_ptr()),
        ("num_layers", "i4", pools.num_layers),
        ("pieces", "i4", pieces),
        ("pairs", cuda.PAIRS, None),
        ("num_items", "i4", None),
        ("num_running", "i4", layout.num_running),
        ("num_kept", "i4", layout.num_kept),
        ("num_same", "i8", layout.num_same),
        ("heads", "i4", layout.heads),
        ("numbers", "i4", layout.numbers),
        ("format", "i4", FORMATS[layout.state_format]),
    ]
