"""CUDA C++ by CuPy: a thread block a head; what needs a scale waits for it in registers."""

from hybrid_blocks.kernels import cuda
from hybrid_blocks.kernels.convert_state.codec import StateCodec
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch import MAX_GRID, WARP
from hybrid_blocks.kernels.launch_queue import LaunchQueue

VALUES_A_THREAD = 32  # 4 HELD in convert_state.cu; decoders too are quickest so
MIN_THREADS, MAX_THREADS = 64, 1024


def encode(
    queue: LaunchQueue, codec: StateCodec, src: IdList, dst: IdList, max_sms: int | None
) -> None:
    """Launch float32 to packed."""
    _launch(queue, codec, f"encode_{codec.format}", (src, dst), max_sms)


def decode(
    queue: LaunchQueue, codec: StateCodec, src: IdList, dst: IdList, max_sms: int | None
) -> None:
    """Launch packed to float32."""
    _launch(queue, codec, f"decode_{codec.format}", (dst, src), max_sms)


def _launch(
    queue: LaunchQueue,
    codec: StateCodec,
    name: str,
    lists: tuple[IdList, IdList],
    max_sms: int | None,
) -> None:
    run = cuda.prepared(codec, queue, "convert_state", name, _parameters)
    count = len(lists[0])
    grid = grid_of(len(codec.heads) * count, codec.head_elements, max_sms)
    run(lists, grid, num_items=count)


def grid_of(num_heads: int, head_elements: int, max_sms: int | None) -> tuple[int, int]:
    """Return (blocks, threads a block): a block for each head, or for each of ``max_sms`` SMs."""
    warps = -(-head_elements // (VALUES_A_THREAD * WARP))
    threads = min(max(WARP * warps, MIN_THREADS), MAX_THREADS)
    return min(num_heads, max_sms or MAX_GRID), threads


def _parameters(codec: StateCodec) -> list[cuda.Parameter]:
    layers, heads = codec.tables()
    return [
        ("layers", "u8", layers.data_ptr()),
        ("heads", "u8", heads.data_ptr()),
        ("num_heads", "i4", len(heads)),
        ("pairs", cuda.PAIRS, None),
        ("num_items", "i4", None),
        ("num_slots", "i4", codec.state.num_blocks),
        ("num_blocks", "i4", codec.packed.num_blocks),
        ("vectorised", "i4", codec.vectorised),
    ]
