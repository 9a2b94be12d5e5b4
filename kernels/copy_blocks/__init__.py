"""Copy blocks onto blocks: fork of a checkpoint, copy on write, boundary snapshot."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import queue_of
from hybrid_blocks.kernels.moves import Moves, Order

if TYPE_CHECKING:
    import torch


def copy_blocks(
    group: BlockTensors,
    src: IdList,
    dst: IdList,
    *,
    order: Order = "list",
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Copy block ``src[i]`` to block ``dst[i]`` in every tensor of ``group``, in one launch.

    ``src`` and ``dst`` are int32 ``[n]``, on the host or on the group's device. A block may be on
    both sides of a host list. ``order`` says what the list means then:

    - ``"list"``: the copies are made one after another in list order, so that ordered batches
      are handed over as one concatenated list;
    - ``"gather_then_scatter"``: every source is read as it was before the call, as
      ``cache[dst] = cache[src]`` does, which is how vLLM copies cache blocks.

    The host does not read lists on the device. In them no id may be on both sides or twice in
    ``dst``. A pair with an id outside ``[0, num_blocks)`` is skipped, so -1 pads the lists of a
    captured graph.

    ``max_sms`` bounds the SMs that the launch occupies. Raises ``TypeError`` for ids that are not
    int32, and ``IndexError`` for one out of bounds. Raises ``ValueError`` for lists that differ in
    length, lie apart or name blocks that overlap in memory. It also raises it for a destination
    named twice, if blocks are gathered before they are scattered.
    """
    launch.check_max_sms(max_sms)
    run = implementation(__name__, group.device, backend)
    moves = Moves(src, dst, group.checks, order=order, device=group.device, reach=group.reach)
    queue = queue_of(group.device, stream)
    if not len(moves):
        return
    if moves.on_host:
        queue.check_not_capturing()
    run.copy_blocks(queue, group, moves, max_sms)
    if stream is not None and not moves.on_host:
        queue.guard(src, dst, own_stream=True)
