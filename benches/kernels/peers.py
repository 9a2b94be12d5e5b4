"""The same work without these kernels: torch, the driver's batches, vLLM's kernels."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from hybrid_blocks.kernels.gather_scatter.copy_engine import copy_batch
from hybrid_blocks.kernels.launch_queue import queue_of

Copies = Sequence[tuple[int, int, int]]  # target, source, bytes


class BatchedCopies:
    """``cuMemcpyBatchAsync`` over fixed copies; its arrays are built once."""

    def __init__(self, copies: Copies) -> None:
        self._arrays = [np.array(column, np.uint64) for column in zip(*copies, strict=True)]

    def __call__(self) -> None:
        """Enqueue the batch on torch's current stream."""
        queue = queue_of(torch.device("cuda", torch.cuda.current_device()), None)
        addresses = [array.ctypes.data for array in self._arrays]
        copy_batch(*addresses, len(self._arrays[0]), queue.handle)


def indexed_copy(tensors: Sequence[torch.Tensor], src: torch.Tensor, dst: torch.Tensor) -> None:
    """Copy blocks with ``index_select`` and ``index_copy_``, tensor by tensor."""
    for tensor in tensors:
        tensor.index_copy_(0, dst, tensor.index_select(0, src))


def vllm_step(tensors: Sequence[torch.Tensor], src: torch.Tensor, dst: torch.Tensor) -> None:
    """Copy blocks as vLLM's ``copy_kv_cache_blocks_inplace`` does, storage by storage."""
    for tensor in tensors:
        tensor[dst] = tensor[src]


def vllm_copies(copies: Copies) -> Callable[[], None] | None:
    """Return vLLM's kernel for copies of states on the device; None where vLLM is missing."""
    try:
        from vllm_tiles import copy_all  # noqa: PLC0415
    except ImportError:
        return None
    columns = zip(*copies, strict=True)
    targets, sources, sizes = (torch.tensor(c, dtype=torch.int64, device="cuda") for c in columns)
    return lambda: copy_all(sources, targets, sizes)


def vllm_swap(copies: Copies, run_bytes: int) -> Callable[[], None] | None:
    """Return vLLM's kernel for short runs over the link; None where vLLM is missing."""
    try:
        from vllm.v1.kv_offload.cpu.swap_blocks_triton import swap_blocks_batch  # noqa: PLC0415
    except ImportError:
        return None
    targets, sources, sizes = (
        torch.tensor(column, dtype=torch.int64).pin_memory() for column in zip(*copies, strict=True)
    )
    return lambda: swap_blocks_batch(sources, targets, sizes, bytes_per_chunk=min(run_bytes, 8192))
