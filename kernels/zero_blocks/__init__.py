"""Clear blocks that are handed out again."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import ids as lists
from hybrid_blocks.kernels import launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import queue_of
from hybrid_blocks.kernels.upload import MAX_LIST

if TYPE_CHECKING:
    import torch


def zero_blocks(
    group: BlockTensors,
    ids: IdList,
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Set every byte of the listed blocks, in every tensor of ``group``, to zero.

    ``ids`` is int32 ``[n]``, on the host or on the group's device, where an id outside
    ``[0, num_blocks)`` is skipped. Raises ``TypeError`` for ids that are not int32 and
    ``IndexError`` for a host id out of bounds.
    """
    launch.check_max_sms(max_sms)
    run = implementation(__name__, group.device, backend)
    host = lists.on_host("ids", ids)
    queue = queue_of(group.device, stream)
    if host is None:
        lists.check_device("ids", group.device, ids)
        if len(ids):
            run.zero_blocks(queue, group, ids, max_sms)
            queue.guard(ids, own_stream=stream is not None)
        return
    group.checks.bounds("ids", host)
    if len(host):
        queue.check_not_capturing()
    for at in range(0, len(host), MAX_LIST):
        run.zero_blocks(queue, group, host[at : at + MAX_LIST], max_sms)
