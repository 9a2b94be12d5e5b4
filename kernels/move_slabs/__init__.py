"""Move whole slabs of the arena: compaction, whatever geometry the pools have."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import ids, launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.upload import upload
from hybrid_blocks.kernels.waves import ordered_waves

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
    host_src, host_dst = ids.on_host("src", src), ids.on_host("dst", dst)
    if len(src) != len(dst):
        raise ValueError(f"src has {len(src)} slabs, dst has {len(dst)}; they are pairs")
    run = implementation(__name__, arena.device, backend)
    if host_src is None or host_dst is None:
        ids.same_place("src and dst", host_src, host_dst)
        ids.check_device("src and dst", arena.device, src, dst)
        with launch.on_device(arena.device, stream):
            run.move_slabs(arena, slab_bytes, src, dst, max_sms)
        return
    ids.check_bounds("src", host_src, num_slabs)
    ids.check_bounds("dst", host_dst, num_slabs)
    waves = ordered_waves(host_src, host_dst)
    if not waves:
        return
    with launch.on_device(arena.device, stream):
        lists = upload(arena.device, [part for wave in waves for part in wave])
        for wave_src, wave_dst in zip(lists[::2], lists[1::2], strict=True):
            run.move_slabs(arena, slab_bytes, wave_src, wave_dst, max_sms)


def _num_slabs(arena: "torch.Tensor", slab_bytes: int) -> int:
    dtype = str(arena.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise TypeError(f"arena must be uint8, got {dtype}")
    if not arena.is_contiguous():
        raise ValueError("arena must be contiguous")
    if slab_bytes < 1 or arena.numel() % slab_bytes:
        raise ValueError(f"slab_bytes is {slab_bytes}; it must divide {arena.numel()} arena bytes")
    return arena.numel() // slab_bytes
