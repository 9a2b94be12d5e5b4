"""The reference: one token after another."""

import torch
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.slot_mapping import PAD_SLOT, Batch


@on_its_stream
def slot_mapping(queue: LaunchQueue, batch: Batch, block_size: int, out: torch.Tensor) -> None:
    """Look every token up in its request's row."""
    bounds, at = batch.query_start.tolist(), batch.positions.tolist()
    slots = [PAD_SLOT] * len(out)
    for row, begin, end in zip(batch.block_table.tolist(), bounds, bounds[1:], strict=False):
        for token in range(begin, min(end, len(at))):
            column, inside = divmod(at[token], block_size)
            if 0 <= column < len(row):
                slots[token] = row[column] * block_size + inside
    out.copy_(torch.tensor(slots, dtype=torch.int64))
