"""Apply a manager's block-table changes to the tables on the device."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hybrid_blocks.kernels import ids
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.ids import IdList, Int32s
from hybrid_blocks.kernels.launch_queue import queue_of

if TYPE_CHECKING:
    import torch


class Delta(NamedTuple):
    """Runs of block ids and where they go, as :func:`apply_table_delta` takes them."""

    rows: IdList
    starts: IdList
    offsets: IdList
    block_ids: IdList


def apply_table_delta(
    table: "torch.Tensor",
    rows: IdList,
    starts: IdList,
    offsets: IdList,
    block_ids: IdList,
    *,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
) -> None:
    """Write runs of block ids into ``table``.

    ``table`` is int32 ``[max_requests, max_blocks]``, its rows contiguous. Run ``i`` is
    ``block_ids[offsets[i]:offsets[i + 1]]`` and goes to ``table[rows[i], starts[i]:]``. All lists
    are int32: ``rows`` and ``starts`` ``[n]``, ``offsets`` ``[n + 1]``, and all are on the host
    or all on the table's device, where what falls outside the table is skipped.

    Raises ``TypeError`` for a dtype; on the host also ``IndexError`` for a run outside the table
    and ``ValueError`` for offsets that do not ascend or runs that share an entry.
    """
    _check_table(table)
    delta = Delta(rows, starts, offsets, block_ids)
    lists = [ids.on_host(name, values) for name, values in zip(Delta._fields, delta, strict=True)]
    if len(starts) != len(rows) or len(offsets) != len(rows) + 1:
        raise ValueError(
            f"{len(rows)} rows need {len(rows)} starts and {len(rows) + 1} offsets, "
            f"got {len(starts)} and {len(offsets)}"
        )
    run = implementation(__name__, table.device, backend)
    if on_host := ids.same_place("rows, starts, offsets and block_ids", *lists):
        host = [values for values in lists if values is not None]
        _check_runs(table, *host)
        delta = Delta(*host)
    else:
        ids.check_device("the delta's lists", table.device, *delta)
    if len(block_ids) == 0:
        return
    queue = queue_of(table.device, stream)
    if on_host:
        queue.check_not_capturing()
    run.apply_table_delta(queue, table, delta)
    if stream is not None and not on_host:
        queue.guard(*delta, own_stream=True)


def _check_table(table: "torch.Tensor") -> None:
    dtype = str(table.dtype).removeprefix("torch.")
    if dtype != "int32":
        raise TypeError(f"table must be int32, got {dtype}")
    if table.dim() != 2:
        raise ValueError(f"table must be [max_requests, max_blocks], got {tuple(table.shape)}")
    if table.shape[1] > 1 and table.stride(1) != 1:
        raise ValueError(f"table rows must be contiguous, got strides {table.stride()}")


def _check_runs(
    table: "torch.Tensor", rows: Int32s, starts: Int32s, offsets: Int32s, block_ids: Int32s
) -> None:
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != len(block_ids) or (lengths < 0).any():
        raise ValueError(
            f"offsets must ascend from 0 to the {len(block_ids)} block_ids, "
            f"got {offsets[0]} to {offsets[-1]}"
        )
    ids.IdChecks(table.shape[0]).bounds("rows", rows)
    ends = starts.astype(np.int64) + lengths
    wrong = (starts < 0) | (ends > table.shape[1])
    if wrong.any():
        i = int(np.argmax(wrong))
        raise IndexError(
            f"run {i} covers columns {starts[i]} to {ends[i]} of a table with {table.shape[1]}"
        )
    order = np.lexsort((starts, rows))
    order = order[lengths[order] > 0]
    same_row = rows[order[1:]] == rows[order[:-1]]
    shared = same_row & (starts[order[1:]] < ends[order[:-1]])
    if shared.any():
        at = int(np.argmax(shared))
        raise ValueError(
            f"runs {order[at]} and {order[at + 1]} write the same entries of row {rows[order[at]]}"
        )
