"""Blocks to and from records of one staging buffer: the copies of offload."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import ids as lists
from hybrid_blocks.kernels import launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.gather_scatter.records import Records
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
    places: IdList,
    granule: int,
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Write block ``ids[i]``, all tensors, from byte ``places[i] * granule`` of ``staging`` on.

    ``staging`` is contiguous uint8. It lies on the group's device, or in pinned host memory, which
    the kernel writes over the link. In a record the segments of the group lie one after another.
    ``ids`` and ``places`` are int32 ``[n]``, both on the host or both on the device. There a pair
    with an id or a place out of bounds is skipped, and no two records may overlap.

    ``max_sms`` bounds the SMs occupied. Without it a transfer over the link takes the fewest that
    fill it (``hybrid_blocks.kernels.tuned``), a gather within the device all of them. Over the
    link, host lists of long runs go to the copy engine, which occupies none
    (``backend="copy_engine"`` asks for it).

    The buffer may be dropped when the call returns: it is held, or recorded for ``stream``, until
    the device is done. Not so in a captured graph, whose replays use it.

    Raises ``TypeError`` for lists that are not int32, and ``IndexError`` for an id or a place of
    the host out of bounds. Raises ``ValueError`` for records that overlap, and for a buffer that is
    too small, out of reach, or part of the group.
    """
    records = Records(group, staging, granule)
    _move("gather", group, ids, records, places, backend=backend, stream=stream, max_sms=max_sms)


def scatter_blocks(
    group: BlockTensors,
    ids: IdList,
    staging: "torch.Tensor",
    places: IdList,
    granule: int,
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Write the record at ``places[i]`` to block ``ids[i]``: the inverse of ``gather_blocks``.

    Takes and refuses the same arguments; no id may occur twice, and records may overlap.
    """
    records = Records(group, staging, granule)
    _move("scatter", group, ids, records, places, backend=backend, stream=stream, max_sms=max_sms)


def _move(
    direction: Direction,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    *,
    backend: Backend | None,
    stream: "torch.cuda.Stream | None",
    max_sms: int | None,
) -> None:
    launch.check_max_sms(max_sms)
    host_ids, host_places = lists.on_host("ids", ids), lists.on_host("places", places)
    if len(ids) != len(places):
        raise ValueError(f"there are {len(ids)} ids and {len(places)} places; they are pairs")
    on_host = lists.same_place("ids and places", host_ids, host_places)
    if host_ids is None or host_places is None:
        lists.check_device("ids and places", group.device, ids, places)
    else:
        # Backends tell lists on the host by their type.
        ids, places = host_ids, host_places
        group.checks.bounds("ids", host_ids)
        records.check(host_places, apart=direction == "gather")
        if direction == "scatter":
            group.checks.unique("ids", host_ids)
            lists.check_apart("ids", host_ids, host_ids, group.reach)
    queue = queue_of(group.device, stream)
    over_link = records.staging.device != group.device
    if over_link and backend is None and max_sms is None and on_host:
        backend = _over_link(direction, queue, group, len(ids))
    run = implementation(__name__, group.device, backend)
    if len(ids) == 0:
        return
    if over_link and max_sms is None:
        name = run.__name__.rpartition(".")[2]
        max_sms = tuned_for(group.device).max_sms(direction, name)
    function = getattr(run, f"{direction}_blocks")
    if on_host:
        queue.check_not_capturing()
        for at in range(0, len(ids), MAX_LIST):
            part = slice(at, at + MAX_LIST)
            function(queue, group, ids[part], records, places[part], max_sms)
    else:
        function(queue, group, ids, records, places, max_sms)
        queue.guard(ids, places, own_stream=stream is not None)
    if over_link or stream is not None:
        queue.guard(records.staging, own_stream=stream is not None, may_capture=not on_host)


def _over_link(
    direction: Direction, queue: LaunchQueue, group: BlockTensors, num_blocks: int
) -> Backend | None:
    """Return ``"copy_engine"`` where its runs are long and many enough, else None."""
    from hybrid_blocks.kernels.gather_scatter import copy_engine  # noqa: PLC0415 - imports torch

    if queue.handle == 0 or not copy_engine.is_usable():
        return None  # the legacy stream takes no batches
    runs = len(group.segments)
    wanted = tuned_for(group.device).takes_copy_engine(
        direction, group.record_bytes // runs, runs * num_blocks
    )
    return "copy_engine" if wanted else None
