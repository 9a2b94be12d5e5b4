"""What the same work costs without these kernels: torch's indexing and the driver's batches."""

import ctypes
from collections.abc import Sequence

import torch


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("src_access_order", ctypes.c_int),
        ("src_location_hint", _Location),
        ("dst_location_hint", _Location),
        ("flags", ctypes.c_uint),
    )


class BatchedCopies:
    """``cuMemcpyBatchAsync`` over fixed copies; its arrays are built once."""

    def __init__(self, copies: Sequence[tuple[int, int, int]]) -> None:
        count = len(copies)
        targets, sources, sizes = zip(*copies, strict=True)
        self._call = ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync_v2
        self._arguments = (
            (ctypes.c_uint64 * count)(*targets),
            (ctypes.c_uint64 * count)(*sources),
            (ctypes.c_size_t * count)(*sizes),
            ctypes.c_size_t(count),
            (_Attributes * 1)(_Attributes(src_access_order=1)),  # in the order of the stream
            (ctypes.c_size_t * 1)(0),
            ctypes.c_size_t(1),
        )

    def __call__(self) -> None:
        """Enqueue the batch on torch's current stream."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = self._call(*self._arguments, stream)
        if status:
            raise RuntimeError(f"cuMemcpyBatchAsync returned {status}")


def indexed_copy(tensors: Sequence[torch.Tensor], src: torch.Tensor, dst: torch.Tensor) -> None:
    """Copy blocks with ``index_select`` and ``index_copy_``, tensor by tensor."""
    for tensor in tensors:
        tensor.index_copy_(0, dst, tensor.index_select(0, src))
