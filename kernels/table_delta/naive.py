"""The reference: one torch copy a run."""

import torch


def apply_table_delta(
    table: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    offsets: torch.Tensor,
    block_ids: torch.Tensor,
) -> None:
    """Write the runs one by one, skipping what falls outside the table."""
    bounds = offsets.tolist()
    runs = zip(rows.tolist(), starts.tolist(), bounds, bounds[1:], strict=False)
    for row, start, begin, end in runs:
        if not 0 <= row < table.shape[0]:
            continue
        skipped = max(0, -start)
        fits = min(end - begin, table.shape[1] - start)
        if skipped < fits:
            table[row, start + skipped : start + fits] = block_ids[begin + skipped : begin + fits]
