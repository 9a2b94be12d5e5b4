"""Triton: one program a unit, addresses by arithmetic alone."""

import torch
import triton
import triton.language as tl
from hybrid_blocks.kernels.triton_common import move_run, triton_grid, unit_bytes


def move_slabs(
    arena: torch.Tensor,
    slab_bytes: int,
    src: torch.Tensor,
    dst: torch.Tensor,
    max_sms: int | None,
) -> None:
    """Launch the copy of one list that has no slab on both sides."""
    units_a_slab = -(-slab_bytes // unit_bytes(max_sms))
    total = units_a_slab * len(src)
    programs, warps = triton_grid(total, max_sms)
    alignment = arena.data_ptr() | slab_bytes | 16
    _move_slabs[(programs,)](
        arena.data_ptr(),
        slab_bytes,
        arena.numel() // slab_bytes,
        src,
        dst,
        total,
        units_a_slab,
        WIDTH=alignment & -alignment,
        UNIT_BYTES=unit_bytes(max_sms),
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["arena", "slab_bytes", "num_slabs", "total", "units_a_slab"])
def _move_slabs(
    arena: tl.int64,
    slab_bytes: tl.int64,
    num_slabs,
    src,
    dst,
    total: tl.int64,
    units_a_slab,
    WIDTH: tl.constexpr,
    UNIT_BYTES: tl.constexpr,
):
    for work in tl.range(tl.program_id(0).to(tl.int64), total, tl.num_programs(0)):
        item = work // units_a_slab
        source = tl.load(src + item).to(tl.int64)
        target = tl.load(dst + item).to(tl.int64)
        if (source >= 0) & (source < num_slabs) & (target >= 0) & (target < num_slabs):
            first = (work % units_a_slab) * UNIT_BYTES
            nbytes = tl.minimum(slab_bytes - first, UNIT_BYTES)
            start = arena + first
            move_run(
                start + source * slab_bytes, start + target * slab_bytes, nbytes, WIDTH, UNIT_BYTES
            )
