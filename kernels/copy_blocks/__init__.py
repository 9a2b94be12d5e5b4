"""Copy blocks onto blocks: fork of a checkpoint, copy on write, boundary snapshot."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.pairs import run_pairs

if TYPE_CHECKING:
    import torch


def copy_blocks(
    group: BlockTensors,
    src: IdList,
    dst: IdList,
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Copy block ``src[i]`` to block ``dst[i]`` in every tensor of ``group``.

    ``src`` and ``dst`` are int32 ``[n]``, on the host or on the group's device. Host lists mean
    the same as the copies made one after another in list order, so ordered batches are handed
    over as one concatenated list; the copies run in one launch, or in a few ordered ones where
    a block is written after an earlier copy read it. Lists on the device are not read by the
    host: there no id may be on both sides nor twice in ``dst``, and a pair with an id outside
    ``[0, num_blocks)`` is skipped, so that -1 pads the lists of a captured graph.

    ``max_sms`` bounds the SMs that the launch occupies. Raises ``TypeError`` for ids that are
    not int32, ``IndexError`` for one out of bounds, ``ValueError`` for lists that differ in
    length, lie apart, or name blocks that overlap in memory.
    """
    launch.check_max_sms(max_sms)
    run = implementation(__name__, group.device, backend)
    run_pairs(
        src,
        dst,
        lambda src, dst: run.copy_blocks(group, src, dst, max_sms),
        what="ids",
        num_ids=group.num_blocks,
        device=group.device,
        stream=stream,
        reach=group.reach,
    )
