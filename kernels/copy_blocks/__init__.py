"""Copy blocks onto blocks: fork of a checkpoint, copy on write, boundary snapshot."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import ids, launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.upload import upload
from hybrid_blocks.kernels.waves import ordered_waves

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
    host_src, host_dst = ids.on_host("src", src), ids.on_host("dst", dst)
    if len(src) != len(dst):
        raise ValueError(f"src has {len(src)} ids, dst has {len(dst)}; they are pairs")
    run = implementation(__name__, group.device, backend)
    if host_src is None or host_dst is None:
        ids.same_place("src and dst", host_src, host_dst)
        ids.check_device("src and dst", group.device, src, dst)
        with launch.on_device(group.device, stream):
            run.copy_blocks(group, src, dst, max_sms)
        return
    ids.check_bounds("src", host_src, group.num_blocks)
    ids.check_bounds("dst", host_dst, group.num_blocks)
    ids.check_apart("src and dst", host_src, host_dst, group.reach)
    ids.check_apart("dst", host_dst, host_dst, group.reach)
    waves = ordered_waves(host_src, host_dst)
    if not waves:
        return
    with launch.on_device(group.device, stream):
        lists = upload(group.device, [part for wave in waves for part in wave])
        for wave_src, wave_dst in zip(lists[::2], lists[1::2], strict=True):
            run.copy_blocks(group, wave_src, wave_dst, max_sms)
