"""How long reads from a tier and the computing of prompts take, as measured lately."""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

# Weight of the newest measurement in a mean.
_WEIGHT: Final = 1 / 8
# Seconds without a read after which one request tries again, whatever was measured.
RETRY_AFTER: Final = 60.0
# Sizes must differ by more than this share, squared, before a fit separates rate and latency.
_RIDGE: Final = 1 / 64
# Tokens below which a step takes hardly longer than one without a prompt.
_LEAST_TOKENS: Final = 512


def _mean(before: float | None, new: float) -> float:
    return new if before is None else before + _WEIGHT * (new - before)


@dataclass
class Read:
    """A read: when it began and ended, its bytes, and those of all that were under way then."""

    begun: float
    own_bytes: int
    all_bytes: int
    ended: float = 0.0


class ReadRate:
    """Latency and rate of a tier under the load there is.

    A line through the reads that ended, each weighed less than the next: seconds over the bytes to
    be read until then, those of earlier reads under way included.
    """

    def __init__(self) -> None:
        self._bytes: float | None = None
        self._seconds: float | None = None
        self._bytes_squared: float | None = None
        self._product: float | None = None
        self._under_way = 0
        self._last_begun = 0.0
        # Tried again after a pause: what was measured before it is void once this has ended.
        self._retry: Read | None = None

    def begin(self, num_bytes: int, now: float) -> Read:
        """Note a read that begins at ``now``, in seconds of any clock."""
        read = Read(now, num_bytes, self._under_way + num_bytes)
        if self._fit() is not None and self._is_old(now):
            self._retry = read
        self._under_way += num_bytes
        self._last_begun = now
        return read

    def end(self, read: Read, *, is_whole: bool) -> None:
        """Note that a read ended; one that failed measures nothing."""
        self._under_way -= read.own_bytes
        if not is_whole or not read.own_bytes:
            return
        if read is self._retry:
            self._bytes = self._seconds = self._bytes_squared = self._product = self._retry = None
        num_bytes, seconds = float(read.all_bytes), max(read.ended - read.begun, 1e-9)
        self._bytes = _mean(self._bytes, num_bytes)
        self._seconds = _mean(self._seconds, seconds)
        self._bytes_squared = _mean(self._bytes_squared, num_bytes**2)
        self._product = _mean(self._product, num_bytes * seconds)

    def cost(self, now: float) -> tuple[float, float] | None:
        """Seconds until a read begun now has its first byte, and seconds for each byte.

        ``None`` if nothing was measured, or not lately: then the tier is tried.
        """
        fit = self._fit()
        if fit is None or self._is_old(now):
            return None
        latency, per_byte = fit
        return latency + self._under_way * per_byte, per_byte

    def _is_old(self, now: float) -> bool:
        return now - self._last_begun > RETRY_AFTER

    def _fit(self) -> tuple[float, float] | None:
        if (
            self._bytes is None
            or self._seconds is None
            or self._bytes_squared is None
            or self._product is None
        ):
            return None
        variance = max(0.0, self._bytes_squared - self._bytes**2) + _RIDGE * self._bytes**2
        per_byte = max(0.0, self._product - self._bytes * self._seconds) / variance
        # No read has less than no latency.
        per_byte = min(per_byte, self._seconds / self._bytes)
        return self._seconds - per_byte * self._bytes, per_byte

    @property
    def latency(self) -> float:
        """Seconds that reads took beside their bytes; 0 if none was measured."""
        fit = self._fit()
        return fit[0] if fit else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes in the seconds that their reads took; 0 if none was measured."""
        return self._bytes / self._seconds if self._bytes and self._seconds else 0.0


@dataclass
class _Step:
    """A step: when it was scheduled, the tokens of prompts in it, and their requests."""

    end: float
    num_tokens: int
    requests: set[str] = field(default_factory=set)


class ComputeRate:
    """Prompt tokens that the engine computes in a second, from what requests store step by step.

    Between one step's schedule and that of the step after the next two steps run: these, or where
    the engine schedules ahead, this one and the one before. The fewer tokens of both are taken.
    """

    def __init__(self, tokens_per_second: float | None = None) -> None:
        """Measure, or take ``tokens_per_second`` as given."""
        self._given = tokens_per_second
        self._tokens: float | None = None
        self._seconds: float | None = None
        self._steps = deque([_Step(0.0, 0)] * 3, maxlen=3)
        self._current = _Step(0.0, 0)

    def advance(self, request: str, num_tokens: int) -> None:
        """Note that the step being scheduled computes ``num_tokens`` tokens of a prompt."""
        if num_tokens > 0:
            self._current.num_tokens += num_tokens
            self._current.requests.add(request)

    def end_step(self, now: float, unfinished: Container[str]) -> None:
        """Note that a step was scheduled. While a request is ``unfinished``, no engine pauses."""
        before, step, after = self._steps
        is_busy = any(request in unfinished for request in step.requests)
        if step.num_tokens >= _LEAST_TOKENS and is_busy and now > step.end:
            num_tokens = step.num_tokens + min(before.num_tokens, after.num_tokens)
            self._tokens = _mean(self._tokens, num_tokens)
            self._seconds = _mean(self._seconds, now - step.end)
        self._current.end = now
        self._steps.append(self._current)
        self._current = _Step(0.0, 0)

    @property
    def tokens_per_second(self) -> float | None:
        """The given rate, else the measured one; ``None`` without either."""
        if self._given is not None:
            return self._given
        return self._tokens / self._seconds if self._tokens and self._seconds else None

    @property
    def seconds_per_token(self) -> float | None:
        """The same for one token."""
        rate = self.tokens_per_second
        return 1 / rate if rate else None
