"""Move whole slabs of the arena: compaction, whatever geometry the pools have."""

from functools import cache
from typing import TYPE_CHECKING

from hybrid_blocks.kernels.backend import Backend
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.copy_blocks import copy_blocks
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.moves import Order

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import torch


def move_slabs(
    arena: "torch.Tensor",
    slab_bytes: int,
    src: IdList,
    dst: IdList,
    *,
    order: Order = "list",
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Copy slab ``src[i]`` of ``arena`` over slab ``dst[i]``, in one launch.

    ``arena`` is contiguous uint8, ``num_slabs * slab_bytes`` bytes. ``src`` and ``dst`` are int32
    ``[n]`` and mean the same as in ``copy_blocks``. Host lists are carried out in list order, so a
    slab may move into one that was just vacated. Device lists must not have an id on both sides. A
    block keeps its index in its slab: its id changes by ``(dst - src) * blocks_per_slab``.

    Raises ``TypeError`` for a dtype, and ``IndexError`` for a slab out of bounds. Raises
    ``ValueError`` for an arena that is not contiguous or not cut by ``slab_bytes``.
    """
    slabs = _slabs(arena, slab_bytes)
    copy_blocks(slabs, src, dst, order=order, backend=backend, stream=stream, max_sms=max_sms)


@cache
def _known() -> "MutableMapping[torch.Tensor, dict[int, BlockTensors]]":
    from torch.utils.weak import WeakIdKeyDictionary  # noqa: PLC0415

    return WeakIdKeyDictionary()


def _slabs(arena: "torch.Tensor", slab_bytes: int) -> BlockTensors:
    """Return the arena as a group whose blocks are its slabs, made at the first call."""
    groups = _known().setdefault(arena, {})
    group = groups.get(slab_bytes)
    if group is None or group.tensors[0].data_ptr() != arena.data_ptr():
        group = groups[slab_bytes] = _group(arena, slab_bytes)
    return group


def _group(arena: "torch.Tensor", slab_bytes: int) -> BlockTensors:
    import torch  # noqa: PLC0415

    dtype = str(arena.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise TypeError(f"arena must be uint8, got {dtype}")
    if not arena.is_contiguous():
        raise ValueError("arena must be contiguous")
    if slab_bytes < 1 or arena.numel() % slab_bytes:
        raise ValueError(f"slab_bytes is {slab_bytes}; it must divide {arena.numel()} arena bytes")
    # A view would keep the arena alive, and with it this group.
    slabs = torch.empty(0, dtype=torch.uint8, device=arena.device)
    shape = (arena.numel() // slab_bytes, slab_bytes)
    slabs.set_(arena.untyped_storage(), arena.storage_offset(), shape, (slab_bytes, 1))
    return BlockTensors([slabs])
