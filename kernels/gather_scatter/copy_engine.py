"""The copy engine: one driver call with a copy for every run of bytes, and no SM.

CuPy does not offer that call, so it is made through ctypes.
"""

import ctypes
from ctypes import c_int, c_size_t, c_void_p

import numpy as np
from hybrid_blocks.kernels import driver as drivers
from hybrid_blocks.kernels.blocks import BlockTensors, Int64s
from hybrid_blocks.kernels.gather_scatter.records import Records
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue


def gather_blocks(
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    max_sms: int | None,
) -> None:
    """Enqueue blocks to records."""
    in_blocks, in_records, sizes = _runs(queue, group, ids, records, places)
    _copy(queue, in_records, in_blocks, sizes)


def scatter_blocks(
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    max_sms: int | None,
) -> None:
    """Enqueue records to blocks."""
    in_blocks, in_records, sizes = _runs(queue, group, ids, records, places)
    _copy(queue, in_blocks, in_records, sizes)


def _runs(
    queue: LaunchQueue, group: BlockTensors, ids: IdList, records: Records, places: IdList
) -> tuple[Int64s, Int64s, Int64s]:
    """Return the address in the block, that in the record and the bytes of every run."""
    if not isinstance(ids, np.ndarray) or not isinstance(places, np.ndarray):
        raise ValueError("the copy engine needs the ids on the host; these lie on the device")
    if queue.device.type != "cpu" and queue.handle == 0:
        raise ValueError("the copy engine does not serve the legacy default stream; pass stream=")
    base, stride, size, offset = group.segments.T
    in_blocks = base + ids[:, None].astype(np.int64) * stride
    begins = records.staging.data_ptr() + places[:, None].astype(np.int64) * records.granule
    return in_blocks.ravel(), (begins + offset).ravel(), np.tile(size, len(ids))


def _copy(queue: LaunchQueue, targets: Int64s, sources: Int64s, sizes: Int64s) -> None:
    with queue.lock, queue.activate():
        copy_batch(
            targets.ctypes.data, sources.ctypes.data, sizes.ctypes.data, len(sizes), queue.handle
        )


def copy_batch(targets: int, sources: int, sizes: int, count: int, stream: int) -> None:
    """Enqueue ``count`` copies given by three arrays of 64-bit addresses and sizes.

    The copies keep the order of the stream but none among themselves.
    """
    status = drivers.library().cuMemcpyBatchAsync_v2(
        *(c_void_p(targets), c_void_p(sources), c_void_p(sizes), c_size_t(count)),
        *((_Attributes * 1)(_Attributes(1)), (c_size_t * 1)(0), c_size_t(1), c_void_p(stream)),
    )
    if status:
        raise RuntimeError(f"cuMemcpyBatchAsync returned {status}")


def is_usable() -> bool:
    """Return whether this driver takes batches of copies."""
    return hasattr(drivers.library(), "cuMemcpyBatchAsync_v2")


class _Attributes(ctypes.Structure):  # CUmemcpyAttributes: two hints of a type and an id each
    _fields_ = (("src_access_order", c_int), ("hints", c_int * 4), ("flags", ctypes.c_uint))
