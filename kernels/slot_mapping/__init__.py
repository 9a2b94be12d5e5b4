"""Where in the cache each token of a batch is written."""

from typing import TYPE_CHECKING, NamedTuple

from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.launch_queue import queue_of

if TYPE_CHECKING:
    import torch

PAD_SLOT = -1  # a token without a slot; attention kernels do not write it


class Batch(NamedTuple):
    """Whose the tokens are and where they stand, as :func:`slot_mapping` takes it."""

    block_table: "torch.Tensor"
    query_start: "torch.Tensor"
    positions: "torch.Tensor"


def slot_mapping(
    block_table: "torch.Tensor",
    query_start: "torch.Tensor",
    positions: "torch.Tensor",
    block_size: int,
    out: "torch.Tensor",
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
) -> None:
    """Write the slot of each token to ``out``.

    Token ``t`` belongs to the request ``r`` with ``query_start[r] <= t < query_start[r + 1]``; its
    slot is ``block_table[r, p // block_size] * block_size + p % block_size`` with
    ``p = positions[t]``. Tokens of no request or beyond their table row, and the entries of
    ``out`` after the last token, get ``PAD_SLOT``.

    ``block_table`` is int32 ``[num_requests, max_blocks]`` with contiguous rows, ``query_start``
    int32 ``[num_requests + 1]`` and ascending from 0, ``positions`` int64 ``[num_tokens]``,
    ``out`` int64 of at least ``num_tokens``; all lie on one device and nothing is read by the
    host. Raises ``TypeError`` for a dtype and ``ValueError`` for shapes that do not fit.
    """
    batch = Batch(block_table, query_start, positions)
    _check(batch, block_size, out)
    if out.numel() == 0:
        return
    run = implementation(__name__, out.device, backend)
    queue = queue_of(out.device, stream)
    run.slot_mapping(queue, batch, block_size, out)
    if stream is not None:
        queue.guard(*batch, out, own_stream=True)


def _check(batch: Batch, block_size: int, out: "torch.Tensor") -> None:
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; a block holds at least one token")
    for name, tensor, dtype, dims in (
        ("block_table", batch.block_table, "int32", 2),
        ("query_start", batch.query_start, "int32", 1),
        ("positions", batch.positions, "int64", 1),
        ("out", out, "int64", 1),
    ):
        got = str(tensor.dtype).removeprefix("torch.")
        if got != dtype:
            raise TypeError(f"{name} must be {dtype}, got {got}")
        if tensor.dim() != dims or (tensor.shape[-1] > 1 and tensor.stride(-1) != 1):
            raise ValueError(
                f"{name} must have {dims} dimension(s), the last contiguous, got shape "
                f"{tuple(tensor.shape)} and strides {tensor.stride()}"
            )
        if tensor.device != out.device:
            raise ValueError(f"{name} is on {tensor.device}, out on {out.device}")
    num_requests = len(batch.block_table)
    if len(batch.query_start) != num_requests + 1:
        raise ValueError(
            f"query_start has {len(batch.query_start)} entries; {num_requests} requests "
            f"need {num_requests + 1}"
        )
    if len(out) < len(batch.positions):
        raise ValueError(f"out has {len(out)} entries for {len(batch.positions)} tokens")
