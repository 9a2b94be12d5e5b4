"""Move whole slabs of the arena: compaction, whatever geometry the pools have."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.pairs import run_pairs

if TYPE_CHECKING:
    import torch


def move_slabs(
    arena: "torch.Tensor",
    slab_bytes: int,
    src: IdList,
    dst: IdList,
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Copy slab ``src[i]`` of ``arena`` over slab ``dst[i]``.

    ``arena`` is contiguous uint8, ``num_slabs * slab_bytes`` bytes. ``src`` and ``dst`` are int32
    ``[n]`` and mean the same as in ``copy_blocks``: host lists are carried out in list order (a
    slab may move into one that was just vacated), device lists must not have an id on both sides.
    A block keeps its index in its slab: its id changes by ``(dst - src) * blocks_per_slab``.

    Raises ``TypeError`` for a dtype, ``IndexError`` for a slab out of bounds and ``ValueError``
    for an arena that is not contiguous or not cut by ``slab_bytes``.
    """
    launch.check_max_sms(max_sms)
    num_slabs = _num_slabs(arena, slab_bytes)
    run = implementation(__name__, arena.device, backend)
    run_pairs(
        src,
        dst,
        lambda src, dst: run.move_slabs(arena, slab_bytes, src, dst, max_sms),
        what="slabs",
        num_ids=num_slabs,
        device=arena.device,
        stream=stream,
    )


def _num_slabs(arena: "torch.Tensor", slab_bytes: int) -> int:
    dtype = str(arena.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise TypeError(f"arena must be uint8, got {dtype}")
    if not arena.is_contiguous():
        raise ValueError("arena must be contiguous")
    if slab_bytes < 1 or arena.numel() % slab_bytes:
        raise ValueError(f"slab_bytes is {slab_bytes}; it must divide {arena.numel()} arena bytes")
    return arena.numel() // slab_bytes
