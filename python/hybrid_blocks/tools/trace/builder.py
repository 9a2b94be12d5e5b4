"""Collects requests into a trace."""

import math
from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from hybrid_blocks.tools.trace.errors import TraceError
from hybrid_blocks.tools.trace.trace import Seconds, Trace

Span = tuple[int, int]
"""First token id and number of tokens."""

MAX_TOKEN_ID = 2**31 - 1

_DAY = 86_400.0
_LONG_DAYS = 400
"""Traces of people are shorter; times in another unit seem longer."""
_SEE_UNIT = "see whether its time is in the unit of the format"
_MOST_DAYS = 100_000
"""Virtual time tells microseconds apart up to here."""


class TraceBuilder:
    """Grows a `Trace` request by request.

    Token ids below ``num_reserved`` belong to the format; `fresh` hands out the ones above.

    Attributes:
        notes: what else its readers should know of the source.
    """

    def __init__(self, name: str, num_reserved: int = 0) -> None:
        self.notes: list[str] = []
        self._name = name
        self._next_fresh = num_reserved
        self._arrival = array("d")
        self._follows = array("i")
        self._session = array("i")
        self._num_sessions = 0
        self._prompt_tokens = array("i")
        self._output_tokens = array("i")
        self._span_start = array("q", [0])
        self._span_first = array("i")
        self._span_count = array("i")

    def __len__(self) -> int:
        return len(self._arrival)

    def fresh(self, num_tokens: int) -> Span:
        """Return a span of token ids that nothing else holds."""
        first = self._next_fresh
        self._next_fresh += num_tokens
        return first, num_tokens

    def new_session(self) -> int:
        """Return the number of a session that no request belongs to yet."""
        self._num_sessions += 1
        return self._num_sessions - 1

    def add(
        self,
        spans: Iterable[Span],
        *,
        arrival: float,
        prompt_tokens: int,
        output_tokens: int,
        follows: int = -1,
        session: int = -1,
    ) -> int:
        """Append a request and return its index.

        ``spans`` hold ``prompt_tokens + output_tokens`` tokens or more; what is over is cut off.
        """
        if not math.isfinite(arrival):
            raise TraceError(f"request {len(self) + 1} of {self._name} arrives at {arrival} s")
        remaining = prompt_tokens + output_tokens
        if remaining > MAX_TOKEN_ID:
            raise TraceError(
                f"request {len(self) + 1} of {self._name} has {remaining:,} tokens; at most "
                f"{MAX_TOKEN_ID:,} are replayed"
            )
        for first, count in _maximal(_cut(spans, remaining)):
            if first + count - 1 > MAX_TOKEN_ID:
                raise TraceError(
                    f"the trace holds more than {MAX_TOKEN_ID:,} distinct tokens; shorten it"
                )
            self._span_first.append(first)
            self._span_count.append(count)
            remaining -= count
        if remaining:
            raise ValueError(f"the spans are {remaining} tokens short of prompt and output")
        self._span_start.append(len(self._span_first))
        self._arrival.append(arrival)
        self._follows.append(follows)
        self._session.append(session)
        self._prompt_tokens.append(prompt_tokens)
        self._output_tokens.append(output_tokens)
        return len(self._arrival) - 1

    def build(
        self,
        skipped: tuple[int, ...] = (),
        cut_off_after: int | None = None,
        *,
        from_zero: bool = False,
    ) -> Trace:
        """Return the trace of everything added; `Trace` says what its source lacked.

        With ``from_zero`` the first request arrives at 0, whatever the source counts from.
        """
        if not self._arrival:
            raise TraceError(f"{self._name} holds no request")
        arrival, follows = np.array(self._arrival), np.array(self._follows, dtype=np.int32)
        if from_zero:
            arrival[follows < 0] -= arrival[follows < 0].min()
        self._check_times(arrival)
        return Trace(
            name=self._name,
            arrival=arrival,
            follows=follows,
            session=np.array(self._session, dtype=np.int32),
            prompt_tokens=np.array(self._prompt_tokens, dtype=np.int32),
            output_tokens=np.array(self._output_tokens, dtype=np.int32),
            span_start=np.array(self._span_start, dtype=np.int64),
            span_first=np.array(self._span_first, dtype=np.int32),
            span_count=np.array(self._span_count, dtype=np.int32),
            skipped=skipped,
            cut_off_after=cut_off_after,
            notes=tuple(self.notes),
        )

    def _check_times(self, arrival: Seconds) -> None:
        last = int(arrival.argmax())
        days = arrival[last] / _DAY
        before = "the first" if self._follows[last] < 0 else "the one before it"
        when = f"{days:,.0f}" if days < 1e9 else f"{days:.3g}"
        late = f"request {last + 1} of {self._name} arrives {when} days after {before}"
        if days > _MOST_DAYS:
            raise TraceError(f"{late}, and at most {_MOST_DAYS:,} are replayed; {_SEE_UNIT}")
        if days > _LONG_DAYS:
            self.notes.append(f"{late}; {_SEE_UNIT}")


def _cut(spans: Iterable[Span], num_tokens: int) -> Iterator[Span]:
    for first, count in spans:
        if num_tokens <= 0:
            return
        yield first, min(count, num_tokens)
        num_tokens -= count


def _maximal(spans: Iterable[Span]) -> Iterator[Span]:
    first, count = 0, 0
    for next_first, next_count in spans:
        if count and next_first == first + count:
            count += next_count
            continue
        if count:
            yield first, count
        first, count = next_first, next_count
    if count:
        yield first, count
