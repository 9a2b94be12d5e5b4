"""Blocks to and from one contiguous staging buffer: the building block of offload."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import ids as lists
from hybrid_blocks.kernels import launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue, queue_of
from hybrid_blocks.kernels.tuned import Direction, tuned_for
from hybrid_blocks.kernels.upload import MAX_LIST

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

    ``staging`` is contiguous uint8 of at least ``n * group.record_bytes`` bytes. It lies on the
    group's device, or in pinned host memory, which the kernel writes over the link. In a record the
    segments of the group lie one after another, each from a multiple of 128 bytes; the bytes
    between them are not written. A buffer that begins on 128 bytes keeps rows whole on the link.
    ``ids`` is int32 ``[n]``; on the device an id outside ``[0, num_blocks)`` leaves its record as
    it is.

    ``max_sms`` bounds the SMs occupied. Without it a transfer over the link takes the fewest that
    fill it (``hybrid_blocks.kernels.tuned``), a gather within the device all of them. Over the
    link, host lists of long runs go to the copy engine, which occupies none
    (``backend="copy_engine"`` asks for it).

    The buffer may be dropped when the call returns: it is held, or recorded for ``stream``, until
    the device is done. Not so in a captured graph, whose replays use it.

    Raises ``TypeError`` for ids that are not int32, and ``IndexError`` for a host id out of bounds.
    Raises ``ValueError`` for a buffer that is too small, out of reach, or part of the group.
    """
    _move("gather", group, ids, staging, backend=backend, stream=stream, max_sms=max_sms)


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
    _move("scatter", group, ids, staging, backend=backend, stream=stream, max_sms=max_sms)


def _move(
    direction: Direction,
    group: BlockTensors,
    ids: IdList,
    staging: "torch.Tensor",
    *,
    backend: Backend | None,
    stream: "torch.cuda.Stream | None",
    max_sms: int | None,
) -> None:
    launch.check_max_sms(max_sms)
    host = lists.on_host("ids", ids)
    if host is None:
        lists.check_device("ids", group.device, ids)
    else:
        group.checks.bounds("ids", host)
        if direction == "scatter":
            group.checks.unique("ids", host)
            lists.check_apart("ids", host, host, group.reach)
    check_staging(group, len(ids), staging)
    queue = queue_of(group.device, stream)
    over_link = staging.device != group.device
    if over_link and backend is None and max_sms is None and host is not None:
        backend = _over_link(direction, queue, group, len(host))
    run = implementation(__name__, group.device, backend)
    if len(ids) == 0:
        return
    if over_link and max_sms is None:
        name = run.__name__.rpartition(".")[2]
        max_sms = tuned_for(group.device).max_sms(direction, name)
    function = getattr(run, f"{direction}_blocks")
    if host is None:
        function(queue, group, ids, staging, max_sms)
        queue.guard(ids, own_stream=stream is not None)
    else:
        queue.check_not_capturing()
        for at in range(0, len(host), MAX_LIST):
            records = staging if at == 0 else staging[at * group.record_bytes :]
            function(queue, group, host[at : at + MAX_LIST], records, max_sms)
    if over_link or stream is not None:
        queue.guard(staging, own_stream=stream is not None, may_capture=host is None)


def _over_link(
    direction: Direction, queue: LaunchQueue, group: BlockTensors, num_blocks: int
) -> Backend | None:
    """Return ``"copy_engine"`` where its runs are long and many enough, else None."""
    from hybrid_blocks.kernels.gather_scatter import copy_engine  # noqa: PLC0415 - imports torch

    if queue.handle == 0 or not copy_engine.is_usable():
        return None  # the legacy stream takes no batches
    runs = len(group.segments)
    wanted = tuned_for(group.device).takes_copy_engine(
        direction, group.block_bytes // runs, runs * num_blocks
    )
    return "copy_engine" if wanted else None


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
