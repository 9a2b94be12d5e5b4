"""Lists of (source, destination) ids, and what they mean where an id is on both sides."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from hybrid_blocks.kernels import ids
from hybrid_blocks.kernels.ids import IdChecks, IdList, Int32s
from hybrid_blocks.kernels.upload import MAX_LIST

if TYPE_CHECKING:
    import torch

Order = Literal["list", "gather_then_scatter"]


class Moves:
    """A checked list of pairs: ``src[i]`` to ``dst[i]``, int32 ``[n]``, in ids of one group.

    ``order`` is what the list means. ``"list"``: the copies made one after another, so that a
    destination may be a later source. ``"gather_then_scatter"``: every source is read as it was
    before the call, as ``cache[dst] = cache[src]`` does; no destination may occur twice.

    ``free`` says that both mean the same, because no id is on both sides nor twice in ``dst``;
    of lists on the device that is a promise.
    """

    __slots__ = ("dst", "free", "on_host", "order", "src")

    def __init__(
        self,
        src: IdList,
        dst: IdList,
        checks: IdChecks,
        *,
        order: Order,
        device: "torch.device",
        reach: int = 1,
    ) -> None:
        host_src, host_dst = ids.on_host("src", src), ids.on_host("dst", dst)
        if len(src) != len(dst):
            raise ValueError(f"src has {len(src)} ids, dst has {len(dst)}; they are pairs")
        if order != "list" and order not in get_args(Order):
            raise ValueError(f"order is {order!r}; it must be one of {', '.join(get_args(Order))}")
        self.order = order
        if host_src is None or host_dst is None:
            ids.same_place("src and dst", host_src, host_dst)
            ids.check_device("src and dst", device, src, dst)
            self.src, self.dst, self.on_host, self.free = src, dst, False, True
            return
        self.src, self.dst, self.on_host = host_src, host_dst, True
        self.free = checks.pairs(host_src, host_dst)
        if order != "list" and not self.free:
            checks.unique("dst", host_dst)
        if reach > 1:
            ids.check_apart("src and dst", host_src, host_dst, reach)
            ids.check_apart("dst", host_dst, host_dst, reach)

    def __len__(self) -> int:
        return len(self.src)

    def launches(self) -> Iterator[tuple[IdList, IdList, int]]:
        """Yield lists (src, dst, ordered) that equal the moves when carried out one by one.

        The first ``ordered`` pairs of a list are carried out in list order, the rest in any order.
        A source ``-1 - b`` means that block ``b`` and the destination trade places. One list,
        unless it has more than ``MAX_LIST`` pairs.
        """
        src, dst, ordered = self.src, self.dst, 0
        if not self.free:
            src, dst, ordered = in_order(src, dst, self.order)  # type: ignore[arg-type]
        if len(src) <= MAX_LIST or not self.on_host:
            if len(src):
                yield src, dst, ordered
            return
        for at in range(0, len(src), MAX_LIST):
            part = slice(at, at + MAX_LIST)
            yield src[part], dst[part], min(max(ordered - at, 0), MAX_LIST)


def in_order(src: Int32s, dst: Int32s, order: Order) -> tuple[Int32s, Int32s, int]:
    """Return pairs, and how many of the first ones have an order.

    A pair has one when its source is written, or its destination read or written, by another.
    Copies of a block onto itself vanish.
    """
    moving = src != dst
    src, dst = src[moving], dst[moving]
    count = len(src)
    values, at = np.unique(np.concatenate((src, dst)), return_inverse=True)
    reads = np.bincount(at[:count], minlength=len(values))
    writes = np.bincount(at[count:], minlength=len(values))
    tied = (writes[at[:count]] > 0) | (reads[at[count:]] > 0) | (writes[at[count:]] > 1)
    first_src, first_dst = src[tied], dst[tied]
    if order == "gather_then_scatter":
        first_src, first_dst = _one_by_one(first_src, first_dst)
    return (
        np.concatenate((first_src, src[~tied])),
        np.concatenate((first_dst, dst[~tied])),
        len(first_src),
    )


def _one_by_one(src: Int32s, dst: Int32s) -> tuple[Int32s, Int32s]:
    """Order moves that all read the state before the first of them; destinations differ.

    A block is written once no pair still reads it. The remaining pairs are rings, in which blocks
    trade places: a ring of k blocks takes k - 1 trades.
    """
    source_of = dict(zip(dst.tolist(), src.tolist(), strict=True))
    readers: dict[int, int] = {}
    for source in source_of.values():
        readers[source] = readers.get(source, 0) + 1
    out: list[tuple[int, int]] = []
    ready = [target for target in source_of if not readers.get(target)]
    while ready:
        target = ready.pop()
        source = source_of.pop(target)
        out.append((source, target))
        readers[source] -= 1
        if not readers[source] and source in source_of:
            ready.append(source)
    while source_of:
        first, source = source_of.popitem()
        target = first
        while source != first:
            out.append((-1 - source, target))
            target, source = source, source_of.pop(source)
    moved = np.array(out, np.int32).reshape(-1, 2)
    return np.ascontiguousarray(moved[:, 0]), np.ascontiguousarray(moved[:, 1])
