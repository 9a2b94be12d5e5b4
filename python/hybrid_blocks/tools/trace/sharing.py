"""Prefixes that requests of a trace share, and signals that a client could give on a session."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hybrid_blocks.tools.trace.errors import TraceError
from hybrid_blocks.tools.trace.trace import Trace

Uint64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

MAX_BLOCKS = 50_000_000
"""Above this many blocks in a trace the measurement would take gigabytes."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Prefix sharing at one block size, with nothing ever evicted.

    Attributes:
        unique_blocks: distinct full blocks, each told apart by all tokens up to its end.
        hit_tokens: prompt tokens that a cache of every earlier request would serve, if requests
            ran one after another in the order of the trace.
        resume_points: distinct prefixes that end where a prompt does, or where one leaves what
            earlier requests computed: with a state at each, a hybrid model loses no hit but the
            first at every point.
    """

    unique_blocks: int
    hit_tokens: int
    resume_points: int


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """How far each request agrees with others, in full blocks; shapes ``[n]``.

    Attributes:
        ids: a number for every block of every request, see `prefix_ids`; shape ``[num_blocks]``.
        start: where each request's blocks begin; shape ``[n + 1]``.
        in_prompt: blocks of the prompt that a cache could serve; one token is always computed.
        seen: leading blocks of the prompt that earlier requests computed.
        seen_again: leading blocks of the prompt that a later request repeats.
    """

    ids: Uint64s
    start: Int64s
    in_prompt: Int64s
    seen: Int64s
    seen_again: Int64s


def shared_prefixes(trace: Trace, block_size: int) -> SharedPrefixes:
    """Compare all prefixes of a trace, in the order of its requests."""
    ids, start = prefix_ids(trace, block_size)
    request_of = np.repeat(np.arange(len(trace)), np.diff(start))
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    last = np.empty(len(first), dtype=np.int64)
    last[inverse] = request_of
    in_prompt = (trace.prompt_tokens.astype(np.int64) - 1) // block_size
    is_prompt = np.arange(len(ids)) - start[request_of] < in_prompt[request_of]
    was_seen = is_prompt & (request_of[first][inverse] < request_of)
    comes_again = is_prompt & (last[inverse] > request_of)
    return SharedPrefixes(
        ids=ids,
        start=start,
        in_prompt=in_prompt,
        seen=np.bincount(request_of[was_seen], minlength=len(trace)),
        seen_again=np.bincount(request_of[comes_again], minlength=len(trace)),
    )


def measure_sharing(
    trace: Trace, block_size: int, prefixes: SharedPrefixes | None = None
) -> Sharing | None:
    """Measure a trace, or return None if it has more than `MAX_BLOCKS` blocks.

    A request's last output token is never computed, and at least one prompt token always is. So a
    request leaves ``(prompt + output - 1) // block_size`` blocks in the cache. The cache can serve
    ``(prompt - 1) // block_size`` of its blocks. ``prefixes`` are those of the same block size, if
    they are known already.
    """
    if ((trace.total_tokens - 1) // block_size).sum() > MAX_BLOCKS:
        return None
    known = prefixes or shared_prefixes(trace, block_size)
    ends = np.concatenate((known.in_prompt, known.seen))
    of = np.concatenate((known.start[:-1], known.start[:-1]))
    points = known.ids[(of + ends - 1)[ends > 0]]
    return Sharing(
        unique_blocks=len(np.unique(known.ids)),
        hit_tokens=int(known.seen.sum()) * block_size,
        resume_points=len(np.unique(points)),
    )


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


PAUSED_SECONDS = 30.0
"""A next turn that follows within this time waited for a tool, not for a person."""

Signals = npt.NDArray[np.int8]


class Signal(IntEnum):
    """Whether more comes after a request."""

    DONE = 0
    GOES_ON = 1
    PAUSED = 2


def session_signals(
    trace: Trace, prefixes: SharedPrefixes, *, accuracy: float = 1.0, seed: int = 0
) -> Signals:
    """Return a `Signal` for each request, shape ``[n]``, right in a share ``accuracy`` of cases.

    A session continues if a later request belongs to it. In a trace without sessions it does if a
    later request repeats more of the prompt than earlier ones had computed. It is paused if the
    next request of the session waits for this one and comes within `PAUSED_SECONDS` of its end. A
    wrong signal reports a finished session as continuing, or the reverse.

    Raises:
        TraceError: ``accuracy`` is not between 0 and 1.
    """
    if not 0 <= accuracy <= 1:
        raise TraceError(f"an accuracy of {accuracy} is none; it is at least 0 and at most 1")
    signals = np.where(_goes_on(trace, prefixes), Signal.GOES_ON, Signal.DONE).astype(np.int8)
    quick = (trace.follows >= 0) & (trace.arrival <= PAUSED_SECONDS)
    same = quick & (trace.session == trace.session[trace.follows]) & (trace.session >= 0)
    signals[trace.follows[same]] = Signal.PAUSED
    is_wrong = np.random.default_rng(seed).random(len(trace)) >= accuracy
    wrong = np.where(signals == Signal.DONE, Signal.GOES_ON, Signal.DONE).astype(np.int8)
    return np.where(is_wrong, wrong, signals).astype(np.int8)


def _goes_on(trace: Trace, prefixes: SharedPrefixes) -> npt.NDArray[np.bool_]:
    goes_on = prefixes.seen_again > prefixes.seen
    named = trace.session >= 0
    last = np.full(int(trace.session.max(initial=-1)) + 1, -1)
    np.maximum.at(last, trace.session[named], np.flatnonzero(named))
    goes_on[named] = last[trace.session[named]] > np.flatnonzero(named)
    return goes_on
