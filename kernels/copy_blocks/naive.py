"""The reference: torch indexing, or one torch copy a block and tensor."""

import torch
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.launch_queue import LaunchQueue, on_its_stream
from hybrid_blocks.kernels.moves import Moves

# Bytes that are read before they are written, on a CPU so few that they stay in its cache.
MAX_GATHERED = {"cpu": 1 << 22, "cuda": 1 << 26}


@on_its_stream
def copy_blocks(queue: LaunchQueue, group: BlockTensors, moves: Moves, max_sms: int | None) -> None:
    """Copy the listed blocks one by one, or all at once, skipping padding."""
    pairs = zip(moves.src.tolist(), moves.dst.tolist(), strict=True)
    inside = range(group.num_blocks)
    known = [(source, target) for source, target in pairs if source in inside and target in inside]
    if moves.order == "gather_then_scatter":
        src, dst = torch.tensor(known, device=group.device).reshape(-1, 2).unbind(1)
        _gather_then_scatter(group, src, dst)
        return
    for tensor in group.byte_views() if group.may_share else group.tensors:
        for source, target in known:
            tensor[target].copy_(tensor[source])


def _gather_then_scatter(group: BlockTensors, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Copy all pairs at once, as many bytes of each block at a time as may be gathered.

    A byte of a block only goes to the same place in another. So pieces of blocks are independent
    of each other, whatever the pairs.
    """
    most = MAX_GATHERED[group.device.type] // max(len(src), 1)
    for run in group.byte_views():
        words = _as_words(run)
        step = max(most // words.element_size(), 1)
        for piece in words.split(step, dim=1):
            piece[dst] = piece[src]


def _as_words(run: torch.Tensor) -> torch.Tensor:
    """Return the same bytes as 64-bit numbers if they are whole ones, which torch moves sooner."""
    is_whole = not any(n % 8 for n in (run.storage_offset(), run.stride(0), run.shape[1]))
    return run.view(torch.int64) if is_whole else run
