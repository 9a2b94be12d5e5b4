"""The copy engine: one driver call with a copy for every run of bytes, and no SM."""

import numpy as np
import torch
from hybrid_blocks.kernels.blocks import BlockTensors, Int64s
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue


def gather_blocks(
    queue: LaunchQueue, group: BlockTensors, ids: IdList, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Enqueue blocks to records."""
    blocks, records, sizes = _runs(queue, group, ids, staging)
    _copy(queue, records, blocks, sizes)


def scatter_blocks(
    queue: LaunchQueue, group: BlockTensors, ids: IdList, staging: torch.Tensor, max_sms: int | None
) -> None:
    """Enqueue records to blocks."""
    blocks, records, sizes = _runs(queue, group, ids, staging)
    _copy(queue, blocks, records, sizes)


def _runs(
    queue: LaunchQueue, group: BlockTensors, ids: IdList, staging: torch.Tensor
) -> tuple[Int64s, Int64s, Int64s]:
    """Return the address in the block, that in the record and the bytes of every run."""
    if not isinstance(ids, np.ndarray):
        raise ValueError("the copy engine needs the ids on the host; these lie on the device")
    if queue.device.type != "cpu" and queue.handle == 0:
        raise ValueError("the copy engine does not serve the legacy default stream; pass stream=")
    base, stride, size, offset = group.segments.T
    at = np.arange(len(ids), dtype=np.int64)[:, None]
    blocks = base + ids[:, None].astype(np.int64) * stride
    records = staging.data_ptr() + at * group.record_bytes + offset
    return blocks.ravel(), records.ravel(), np.tile(size, len(ids))


def _copy(queue: LaunchQueue, targets: Int64s, sources: Int64s, sizes: Int64s) -> None:
    with queue.lock, queue.activate():
        queue.driver.copy_batch(
            targets.ctypes.data, sources.ctypes.data, sizes.ctypes.data, len(sizes), queue.pointer
        )
