"""What the requests of a trace have in common, whatever serves them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybrid_blocks.trace.trace import Trace

Uint64s = npt.NDArray[np.uint64]

MAX_BLOCKS = 50_000_000
"""Above this many blocks in a trace the measurement would take gigabytes."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Prefix sharing at one block size, with nothing ever evicted.

    Attributes:
        unique_blocks: distinct full blocks, each told apart by all tokens up to its end.
        hit_tokens: prompt tokens that a cache of every earlier request would serve, if requests
            ran one after another in the order of the trace.
    """

    unique_blocks: int
    hit_tokens: int


def measure_sharing(trace: Trace, block_size: int) -> Sharing | None:
    """Measure a trace, or return None if it has more than `MAX_BLOCKS` blocks.

    A request's last output token is never computed and at least one prompt token always is, so a
    request leaves ``(prompt + output - 1) // block_size`` blocks in the cache and can be served
    ``(prompt - 1) // block_size`` of them from it.
    """
    blocks = (trace.total_tokens - 1) // block_size
    if blocks.sum() > MAX_BLOCKS:
        return None
    prefixes = np.empty(blocks.sum(), dtype=np.uint64)
    start = np.concatenate(([0], np.cumsum(blocks)))
    for request, num_blocks in enumerate(blocks):
        if num_blocks:
            prefixes[start[request] : start[request + 1]] = _prefix_sums(
                trace, request, block_size, num_blocks
            )
    request_of = np.repeat(np.arange(len(trace)), blocks)
    _, first, inverse = np.unique(prefixes, return_index=True, return_inverse=True)
    seen = request_of[first][inverse] < request_of
    in_prompt = np.arange(len(prefixes)) - start[request_of] < (
        (trace.prompt_tokens[request_of] - 1) // block_size
    )
    return Sharing(len(first), int((seen & in_prompt).sum()) * block_size)


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
