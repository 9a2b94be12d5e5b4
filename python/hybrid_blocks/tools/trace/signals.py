"""Signals that a client could give on a request's session, from the future of a trace."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hybrid_blocks.tools.trace.errors import TraceError
from hybrid_blocks.tools.trace.sharing import SharedPrefixes
from hybrid_blocks.tools.trace.trace import Trace

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
