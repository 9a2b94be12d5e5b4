"""Blocks to and from one contiguous staging buffer: the building block of offload."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import ids as lists
from hybrid_blocks.kernels import launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.upload import upload

if TYPE_CHECKING:
    import torch


def gather_blocks(
    group: BlockTensors,
    ids: IdList,
    staging: "torch.Tensor",
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Write block ``ids[i]``, all tensors, to record ``i`` of ``staging``.

    ``staging`` is contiguous uint8 of at least ``n * group.record_bytes`` bytes, on the group's
    device or in pinned host memory, which the kernel then writes over the link. In a record the
    segments of the group lie one after another, each from a multiple of 16 bytes; the bytes
    between them are not written. ``ids`` is int32 ``[n]``; on the device an id outside
    ``[0, num_blocks)`` leaves its record as it is. ``max_sms`` bounds the SMs occupied: 8 are
    enough for a link, and the model keeps the rest.

    Raises ``TypeError`` for ids that are not int32, ``IndexError`` for a host id out of bounds,
    ``ValueError`` for a buffer that is too small, out of reach, or part of the group.
    """
    _move("gather_blocks", group, ids, staging, backend=backend, stream=stream, max_sms=max_sms)


def scatter_blocks(
    group: BlockTensors,
    ids: IdList,
    staging: "torch.Tensor",
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Write record ``i`` of ``staging`` to block ``ids[i]``: the inverse of ``gather_blocks``.

    Host ids must differ from one another (``ValueError``); on the device that is a promise.
    """
    _move("scatter_blocks", group, ids, staging, backend=backend, stream=stream, max_sms=max_sms)


def _move(
    operation: str,
    group: BlockTensors,
    ids: IdList,
    staging: "torch.Tensor",
    *,
    backend: Backend | None,
    stream: "torch.cuda.Stream | None",
    max_sms: int | None,
) -> None:
    launch.check_max_sms(max_sms)
    run = implementation(__name__, group.device, backend)
    host = lists.on_host("ids", ids)
    if host is None:
        lists.check_device("ids", group.device, ids)
    else:
        lists.check_bounds("ids", host, group.num_blocks)
        if operation == "scatter_blocks":
            lists.check_unique("ids", host)
            lists.check_apart("ids", host, host, group.reach)
    check_staging(group, len(ids), staging)
    if len(ids) == 0:
        return
    with launch.on_device(group.device, stream):
        (device_ids,) = (ids,) if host is None else upload(group.device, [host])
        getattr(run, operation)(group, device_ids, staging, max_sms)


def check_staging(group: BlockTensors, num_records: int, staging: "torch.Tensor") -> None:
    """Raise unless ``staging`` can hold ``num_records`` records and the device can reach it."""
    dtype = str(staging.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise TypeError(f"staging must be uint8, got {dtype}")
    if not staging.is_contiguous():
        raise ValueError("staging must be contiguous")
    needed = num_records * group.record_bytes
    if staging.numel() < needed:
        raise ValueError(
            f"staging has {staging.numel()} bytes; {num_records} records of "
            f"{group.record_bytes} bytes need {needed}"
        )
    if staging.device != group.device and not (
        staging.device.type == "cpu" and staging.is_pinned()
    ):
        raise ValueError(
            f"staging is on {staging.device}, the tensors on {group.device}: it must be on the "
            "same device or in pinned host memory"
        )
    if group.overlaps(staging.data_ptr(), needed):
        raise ValueError("staging lies inside the group's tensors")
