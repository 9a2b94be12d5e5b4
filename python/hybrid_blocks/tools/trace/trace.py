"""The form that every trace takes in memory."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in struct-of-arrays form; ``n`` requests, ``m`` spans of token ids.

    The tokens of a request, prompt then output, are a list of *spans*: runs of consecutive token
    ids. Equal content has equal ids, and content that occurs once has ids that occur once. So two
    requests share exactly the prefix that the trace says they share. Spans are maximal: no span
    begins with the id that follows the last id of the span before it.

    Attributes:
        name: what to call the trace in a report.
        arrival: shape ``[n]``, seconds. From the start of the trace, or, where ``follows`` names
            a request, from the end of that request.
        session: shape ``[n]``, the conversation or task that a request belongs to, or -1 where the
            trace does not say.
        follows: shape ``[n]``, the request that must have finished first (always a lower index),
            or -1.
        prompt_tokens: shape ``[n]``, at least 1.
        output_tokens: shape ``[n]``, at least 1.
        span_start: shape ``[n + 1]``; request ``i`` owns spans ``span_start[i]:span_start[i+1]``.
        span_first: shape ``[m]``, first token id of a span.
        span_count: shape ``[m]``, number of tokens of a span.
        skipped: the lines of the file that were damaged and skipped, by number from 1.
        cut_off_after: the last line that could be unpacked of a file that was cut off.
        notes: what else its readers should know of the file.
    """

    name: str
    arrival: Seconds
    follows: Int32s
    prompt_tokens: Int32s
    output_tokens: Int32s
    span_start: Int64s
    span_first: Int32s
    span_count: Int32s
    session: Int32s
    skipped: tuple[int, ...] = ()
    cut_off_after: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def damaged_lines(self) -> int:
        """How many lines of the file were skipped."""
        return len(self.skipped)

    @property
    def total_tokens(self) -> Int64s:
        """Prompt and output tokens of each request, shape ``[n]``."""
        return self.prompt_tokens.astype(np.int64) + self.output_tokens

    def token_ids(self, request: int) -> Int32s:
        """Make the token ids of one request, shape ``[prompt_tokens + output_tokens]``."""
        spans = slice(self.span_start[request], self.span_start[request + 1])
        first, count = self.span_first[spans], self.span_count[spans]
        if len(first) == 1:
            return np.arange(first[0], first[0] + count[0], dtype=np.int32)
        end = np.cumsum(count, dtype=np.int32)
        ids = np.arange(end[-1], dtype=np.int32)
        ids += np.repeat(first - (end - count), count)
        return ids

    def request_id(self, request: int) -> str:
        """Return the name by which a manager knows a request."""
        return str(request)

    def head(self, limit: int) -> "Trace":
        """Return the first ``limit`` requests."""
        if limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1")
        return self.take(np.arange(min(limit, len(self))))

    def take(self, requests: Int64s) -> "Trace":
        """Return some requests, by rising numbers; a follower needs its leader among them."""
        numbers = np.full(len(self), -1, dtype=np.int32)
        numbers[requests] = np.arange(len(requests), dtype=np.int32)
        leaders = self.follows[requests]
        counts = np.diff(self.span_start)[requests]
        start = np.concatenate(([0], np.cumsum(counts)))
        spans = np.repeat(self.span_start[requests] - start[:-1], counts) + np.arange(start[-1])
        return replace(
            self,
            arrival=self.arrival[requests],
            follows=np.where(leaders < 0, np.int32(-1), numbers[leaders]),
            session=self.session[requests],
            prompt_tokens=self.prompt_tokens[requests],
            output_tokens=self.output_tokens[requests],
            span_start=start,
            span_first=self.span_first[spans],
            span_count=self.span_count[spans],
        )

    def faster(self, rate: float) -> "Trace":
        """Return the same requests, whose sessions begin ``rate`` times as often.

        The pauses of followers are their users' own.
        """
        starts = np.where(self.follows < 0, self.arrival / rate, self.arrival)
        return replace(self, arrival=starts)

    def at_once(self) -> "Trace":
        """Return the same requests with no time between them; followers still follow."""
        return replace(self, arrival=np.zeros_like(self.arrival))
