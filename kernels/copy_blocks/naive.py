"""The reference: one torch copy a block and tensor."""

import torch
from hybrid_blocks.kernels.blocks import BlockTensors


def copy_blocks(
    group: BlockTensors,
    src: torch.Tensor,
    dst: torch.Tensor,
    max_sms: int | None,  # noqa: ARG001
) -> None:
    """Copy the listed blocks one by one, skipping padding."""
    for source, target in zip(src.tolist(), dst.tolist(), strict=True):
        if 0 <= source < group.num_blocks and 0 <= target < group.num_blocks:
            for tensor in group.tensors:
                tensor[target].copy_(tensor[source])
