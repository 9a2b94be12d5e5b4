"""Lists of block ids: where they are, and whether they can be trusted."""

import threading
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Int32s = npt.NDArray[np.int32]

# What a manager hands out: an int32 array, or a torch tensor of any device.
IdList: TypeAlias = "Int32s | torch.Tensor"

INT32 = np.dtype(np.int32)
FEW = 24  # up to here a set is quicker than arrays
_LAST_STAMP = 2**31 - 1


def on_host(name: str, ids: IdList) -> Int32s | None:
    """Return ``ids`` as a host array, or None for a list that already lies on a device.

    Raises ``TypeError`` unless it is int32, ``ValueError`` unless it has one dimension.
    """
    if type(ids) is np.ndarray and ids.dtype is INT32 and ids.ndim == 1:
        return ids
    dtype = str(getattr(ids, "dtype", type(ids).__name__)).removeprefix("torch.")
    if dtype != "int32":
        raise TypeError(f"{name} must be an int32 array, got {dtype}")
    if ids.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(ids.shape)}")
    if isinstance(ids, np.ndarray):
        return ids.astype(INT32, copy=False)  # in the machine's byte order
    if ids.device.type != "cpu":
        if not ids.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got stride {ids.stride(0)}")
        return None
    array: Int32s = ids.numpy()
    return array


class IdChecks:
    """The checks of lists whose ids lie in ``[0, num_ids)``.

    Stamps tell whether a list names an id twice, or two lists share one. Each list writes numbers
    that no list before it wrote, so nothing is cleared. A check costs the length of the list, not
    of the group. ``what`` names the ids in errors.
    """

    def __init__(self, num_ids: int) -> None:
        self.num_ids = num_ids
        self._lock = threading.Lock()
        self._stamps: npt.NDArray[np.int32] | None = None
        self._next = 1

    def bounds(self, name: str, ids: Int32s) -> None:
        """Raise ``IndexError`` at the first id that is not in ``[0, num_ids)``."""
        if len(ids) and int(np.maximum.reduce(ids.view(np.uint32))) >= self.num_ids:
            at = int(np.argmax((ids < 0) | (ids >= self.num_ids)))
            raise IndexError(f"{name}[{at}] is {ids[at]}, not a block id in [0, {self.num_ids})")

    def pairs(self, src: Int32s, dst: Int32s) -> bool:
        """Return whether the pairs may be carried out in any order.

        That is: no id is twice in ``dst`` and none is in both lists. Raises ``IndexError`` for
        ids out of bounds.
        """
        if len(src) <= FEW:
            sources, targets = src.tolist(), dst.tolist()
            if sources and not (
                min(sources) >= 0
                and max(sources) < self.num_ids
                and min(targets) >= 0
                and max(targets) < self.num_ids
            ):
                self.bounds("src", src)
                self.bounds("dst", dst)
            written = set(targets)
            return len(written) == len(targets) and written.isdisjoint(sources)
        try:
            with self._lock:
                unique, first, stamps = self._stamp(dst)
                return unique and bool(np.maximum.reduce(stamps.take(_places(src))) < first)
        except IndexError:
            self.bounds("src", src)
            self.bounds("dst", dst)
            raise

    def unique(self, name: str, ids: Int32s) -> None:
        """Raise ``ValueError`` at the first id that occurs twice; all must be in bounds."""
        if len(ids) <= FEW:
            unique = len(set(ids.tolist())) == len(ids)
        else:
            with self._lock:
                unique, _, _ = self._stamp(ids)
        if not unique:
            values, counts = np.unique(ids, return_counts=True)
            twice = values[np.argmax(counts > 1)]
            raise ValueError(f"{name} holds block {twice} twice; each destination is written once")

    def _stamp(self, ids: Int32s) -> tuple[bool, int, npt.NDArray[np.int32]]:
        """Stamp every id; return whether all differ, the first stamp and all stamps.

        Raises ``IndexError`` for an id out of bounds.
        """
        first = self._next
        if self._stamps is None or first + len(ids) > _LAST_STAMP:
            self._stamps, first = np.zeros(self.num_ids, np.int32), 1
        self._next = first + len(ids)
        fresh = np.arange(first, self._next, dtype=np.int32)
        places = _places(ids)
        self._stamps[places] = fresh
        unique = self._stamps.take(places).tobytes() == fresh.tobytes()
        return unique, first, self._stamps


def _places(ids: Int32s) -> npt.NDArray[np.intp]:
    """Return ids as indices, one below zero as one beyond every bound."""
    return ids.view(np.uint32).astype(np.intp)


def check_apart(name: str, left: Int32s, right: Int32s, reach: int) -> None:
    """Raise ``ValueError`` when two different ids are so close that their blocks share bytes."""
    if reach == 1 or not len(left) or not len(right):
        return
    order = np.unique(right)
    for side in (-1, 1):
        at = np.searchsorted(order, left, "left" if side < 0 else "right") + (side - 1) // 2
        inside = (at >= 0) & (at < len(order))
        gap = np.abs(order[at[inside]].astype(np.int64) - left[inside])
        if np.any(gap < reach):
            i = int(np.flatnonzero(inside)[np.argmax(gap < reach)])
            raise ValueError(
                f"{name}: blocks {left[i]} and {order[at[i]]} overlap in memory; "
                f"ids of this group must be {reach} apart"
            )


def same_place(names: str, *lists: Int32s | None) -> bool:
    """Return whether all lists are on the host; raise ``ValueError`` when only some are."""
    host = [ids is not None for ids in lists]
    if any(host) != all(host):
        raise ValueError(f"{names} must all be on the host or all on the device")
    return all(host)


def check_device(names: str, device: "torch.device", *lists: IdList) -> None:
    """Raise ``ValueError`` unless every list lies on ``device``."""
    for ids in lists:
        if ids.device != device:
            raise ValueError(f"{names} lie on {ids.device}, the tensors on {device}")
