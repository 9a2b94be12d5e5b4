"""CUDA C++ by CuPy: a thread block a head after another, the next ones in flight meanwhile."""

from dataclasses import dataclass
from functools import partial

from hybrid_blocks.kernels import cuda
from hybrid_blocks.kernels import driver as drivers
from hybrid_blocks.kernels.convert_state.codec import StateCodec
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue

VALUES_A_THREAD = 16
MIN_THREADS, MAX_THREADS = 64, 1024
THREADS_AN_SM = 2048
MAX_STAGES = 3
STATIC_SHARED_BYTES = 1024  # what a thread block takes beside its stages


@dataclass(frozen=True, slots=True)
class Shape:
    """How a codec's heads are cut over thread blocks."""

    threads: int
    blocks_an_sm: int
    stages: int
    stage_bytes: int
    num_sms: int

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a thread block."""
        return self.stages * self.stage_bytes

    def grid(self, num_heads: int, max_sms: int | None) -> tuple[int, int]:
        """Return (blocks, threads a block); with ``max_sms`` one block for each SM."""
        if max_sms is None:
            return min(num_heads, self.num_sms * self.blocks_an_sm), self.threads
        return min(num_heads, max_sms), self.threads


def encode(
    queue: LaunchQueue, codec: StateCodec, src: IdList, dst: IdList, max_sms: int | None
) -> None:
    """Launch float32 to packed."""
    staged = codec.scales is not None
    name = f"encode_{codec.format}"
    shape = _shape(queue, codec, staged=staged)
    run = cuda.prepared(codec, queue, "convert_state", name, partial(_parameters, shape=shape))
    if shape.shared_bytes > run.shared_bytes_allowed:
        run.allow_shared_bytes(shape.shared_bytes)
    grid = shape.grid(len(codec.heads) * len(src), max_sms)
    run((src, dst), grid, shape.shared_bytes, num_items=len(src))


def decode(
    queue: LaunchQueue, codec: StateCodec, src: IdList, dst: IdList, max_sms: int | None
) -> None:
    """Launch packed to float32."""
    run = cuda.prepared(codec, queue, "convert_state", f"decode_{codec.format}", _parameters)
    grid = _shape(queue, codec, staged=False).grid(len(codec.heads) * len(src), max_sms)
    run((dst, src), grid, num_items=len(src))


def _parameters(codec: StateCodec, shape: Shape | None = None) -> list[cuda.Parameter]:
    layers, heads = codec.tables()
    parameters: list[cuda.Parameter] = [
        ("layers", "u8", layers.data_ptr()),
        ("heads", "u8", heads.data_ptr()),
        ("num_heads", "i4", len(heads)),
        ("pairs", cuda.PAIRS, None),
        ("num_items", "i4", None),
        ("num_slots", "i4", codec.state.num_blocks),
        ("num_blocks", "i4", codec.packed.num_blocks),
        ("vectorised", "i4", codec.vectorised),
    ]
    if shape is not None and codec.scales is not None:
        parameters += [("stages", "i4", shape.stages), ("stage_bytes", "i4", shape.stage_bytes)]
    return parameters


def _shape(queue: LaunchQueue, codec: StateCodec, *, staged: bool) -> Shape:
    ordinal = queue.device.index or 0
    return shape_for(
        codec.head_elements,
        staged=staged,
        num_sms=cuda.attribute(ordinal, drivers.SM_COUNT),
        block_bytes=cuda.attribute(ordinal, drivers.SHARED_BYTES_A_BLOCK),
        sm_bytes=cuda.attribute(ordinal, drivers.SHARED_BYTES_AN_SM),
    )


def shape_for(
    head_elements: int, *, staged: bool, num_sms: int, block_bytes: int, sm_bytes: int
) -> Shape:
    """Return the launch shape for heads of ``head_elements`` float32 values.

    ``block_bytes`` and ``sm_bytes`` are the shared memory that a thread block and an SM have. Two
    or three stages where they fit, else one, and none for heads that do not fit at all.
    """
    warps = -(-head_elements // (VALUES_A_THREAD * 32))
    threads = min(max(32 * warps, MIN_THREADS), MAX_THREADS)
    blocks_an_sm = THREADS_AN_SM // threads
    if not staged:
        return Shape(threads, min(blocks_an_sm, 32), 0, 0, num_sms)
    stage_bytes = -(-head_elements // 4) * 16
    stages = min(MAX_STAGES, (block_bytes - STATIC_SHARED_BYTES) // stage_bytes)
    if stages:
        taken = stages * stage_bytes + STATIC_SHARED_BYTES
        blocks_an_sm = max(1, min(blocks_an_sm, 32, sm_bytes // taken))
    return Shape(threads, blocks_an_sm, stages, stage_bytes, num_sms)
