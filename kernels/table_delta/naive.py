"""The reference: one torch copy a run."""

import torch
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.table_delta import Delta


@on_its_stream
def apply_table_delta(queue: LaunchQueue, table: torch.Tensor, delta: Delta) -> None:
    """Write the runs one by one, skipping what falls outside the table."""
    values = torch.as_tensor(delta.block_ids, device=table.device)
    bounds = delta.offsets.tolist()
    runs = zip(delta.rows.tolist(), delta.starts.tolist(), bounds, bounds[1:], strict=False)
    for row, start, begin, end in runs:
        if not 0 <= row < table.shape[0]:
            continue
        skipped = max(0, -start)
        fits = min(end - begin, table.shape[1] - start)
        if skipped < fits:
            table[row, start + skipped : start + fits] = values[begin + skipped : begin + fits]
