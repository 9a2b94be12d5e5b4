"""The reference: one torch copy a slab."""

import torch


def move_slabs(
    arena: torch.Tensor,
    slab_bytes: int,
    src: torch.Tensor,
    dst: torch.Tensor,
    max_sms: int | None,  # noqa: ARG001
) -> None:
    """Copy the listed slabs one by one, skipping padding."""
    slabs = arena.view(-1, slab_bytes)
    for source, target in zip(src.tolist(), dst.tolist(), strict=True):
        if 0 <= source < len(slabs) and 0 <= target < len(slabs):
            slabs[target].copy_(slabs[source])
