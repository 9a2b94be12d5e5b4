"""Lists of block ids: where they are, and whether they can be trusted."""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from hybrid_blocks.kernels.blocks import Int32s

if TYPE_CHECKING:
    import torch

# What a manager hands out: an int32 array, or a torch tensor of any device.
IdList: TypeAlias = "Int32s | torch.Tensor"


def on_host(name: str, ids: IdList) -> Int32s | None:
    """Return ``ids`` as a host array, or None for a list that already lies on a device.

    Raises ``TypeError`` unless it is int32, ``ValueError`` unless it has one dimension.
    """
    dtype = str(getattr(ids, "dtype", type(ids).__name__)).removeprefix("torch.")
    if dtype != "int32":
        raise TypeError(f"{name} must be an int32 array, got {dtype}")
    if ids.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(ids.shape)}")
    if isinstance(ids, np.ndarray):
        return np.ascontiguousarray(ids)
    if ids.device.type != "cpu":
        if not ids.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got stride {ids.stride(0)}")
        return None
    return np.ascontiguousarray(ids.numpy())


def check_bounds(name: str, ids: Int32s, bound: int) -> None:
    """Raise ``IndexError`` at the first id that is not in ``[0, bound)``."""
    wrong = (ids < 0) | (ids >= bound)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise IndexError(f"{name}[{at}] is {ids[at]}, not a block id in [0, {bound})")


def check_unique(name: str, ids: Int32s) -> None:
    """Raise ``ValueError`` at the first id that occurs twice."""
    values, counts = np.unique(ids, return_counts=True)
    if len(values) != len(ids):
        twice = values[np.argmax(counts > 1)]
        raise ValueError(f"{name} holds block {twice} twice; each destination is written once")


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
