"""The reference: one torch fill a block and tensor."""

import torch
from hybrid_blocks.kernels.blocks import BlockTensors


def zero_blocks(group: BlockTensors, ids: torch.Tensor, max_sms: int | None) -> None:  # noqa: ARG001
    """Clear the listed blocks one by one, skipping padding."""
    for block in ids.tolist():
        if 0 <= block < group.num_blocks:
            for tensor in group.tensors:
                tensor[block].zero_()
