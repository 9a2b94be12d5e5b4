"""A number for every block of a trace that tells apart all tokens up to its end."""

import numpy as np
import numpy.typing as npt

from hybrid_blocks.trace.trace import Trace

Uint64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


def prefix_ids(trace: Trace, block_size: int) -> tuple[Uint64s, Int64s]:
    """Return the blocks of all requests, one after another, and where each request begins.

    A request's last output token is never computed, so it leaves
    ``(prompt + output - 1) // block_size`` blocks. Shapes ``[num_blocks]`` and ``[n + 1]``.
    """
    blocks = (trace.total_tokens - 1) // block_size
    start = np.concatenate(([0], np.cumsum(blocks)))
    ids = np.empty(start[-1], dtype=np.uint64)
    for request, num_blocks in enumerate(blocks):
        if num_blocks:
            ids[start[request] : start[request + 1]] = _prefix_sums(
                trace, request, block_size, num_blocks
            )
    return ids, start


def _prefix_sums(trace: Trace, request: int, block_size: int, num_blocks: int) -> Uint64s:
    """Return a 64-bit sum over everything up to each block's end, shape ``[num_blocks]``.

    Spans are maximal, so that cutting them at block ends gives equal pieces for equal blocks.
    """
    spans = slice(trace.span_start[request], trace.span_start[request + 1])
    first, count = trace.span_first[spans].astype(np.int64), trace.span_count[spans]
    span_end = np.cumsum(count, dtype=np.int64)
    block_end = np.arange(1, num_blocks + 1, dtype=np.int64) * block_size
    piece_end = np.union1d(span_end[span_end < block_end[-1]], block_end)
    piece_start = np.concatenate(([0], piece_end[:-1]))
    span = np.searchsorted(span_end, piece_start, side="right")
    token = first[span] + piece_start - (span_end[span] - count[span])
    sums = np.cumsum(_mix(_mix(token.view(np.uint64)) ^ piece_start.view(np.uint64)))
    return sums[np.searchsorted(piece_end, block_end)]


def _mix(values: Uint64s) -> Uint64s:
    """Scramble 64-bit values: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
