"""One of several connectors: what it promised, and how it kept that."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from hybrid_blocks.offload.multi.choice import Offer
from hybrid_blocks.offload.tiers.rates import RETRY_AFTER, Read, ReadRate

_FAILURES_IN_A_ROW: Final = 3
"""A child rests after this number of errors in a row."""


@dataclass(eq=False)
class Child:
    """A connector's place in the list, the user's weight, and what was seen of it.

    ``counts`` are those since the last report.
    """

    connector: Any
    place: int
    weight: float = 1.0
    rate: ReadRate = field(default_factory=ReadRate)
    share: float = 1.0
    counts: Counter[str] = field(default_factory=Counter)
    _last_failure: float = float("-inf")
    _errors: int = 0
    _asked_since: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The connector's place and class, as in metrics."""
        return f"{self.place} {type(self.connector).__name__}"

    def is_asked(self, now: float) -> bool:
        """Whether the connector answers; after several errors in a row it rests for a while."""
        return self._errors < _FAILURES_IN_A_ROW or now - self._last_failure > RETRY_AFTER

    def note_error(self, now: float) -> None:
        """Note that the connector raised an error instead of an answer."""
        self._errors += 1
        self._last_failure = now
        self.counts["errors"] += 1

    def note_answer(self, request_id: str, *, is_later: bool, now: float) -> float:
        """Note an answer or, if ``is_later``, a delay; return seconds since the first delay."""
        self._errors = 0
        if not is_later:
            self._asked_since.pop(request_id, None)
            return 0.0
        return now - self._asked_since.setdefault(request_id, now)

    def note_load(self, now: float, *, is_whole: bool) -> None:
        """Note that a load ended, or failed."""
        self.share += (is_whole - self.share) / 2
        if not is_whole:
            self._last_failure = now
            self.counts["failed_loads"] += 1

    def forget(self, request_id: str) -> None:
        """A request was admitted or ended: it waits for no answer any more."""
        self._asked_since.pop(request_id, None)

    def offer(self, num_tokens: int, num_bytes: int, now: float) -> Offer:
        """Return what a load of these tokens is worth."""
        cost = self.rate.cost(now)
        seconds = 0.0 if cost is None else (cost[0] + cost[1] * num_bytes) / self.weight
        is_trusted = now - self._last_failure > RETRY_AFTER
        return Offer(self.place, num_tokens, seconds, 1.0 if is_trusted else self.share)

    def begin(self, num_tokens: int, num_bytes: int, now: float, *, is_async: bool) -> "Load":
        """Begin a load; time it only where the engine does not wait for it."""
        self.counts["loads"] += 1
        self.counts["loaded_tokens"] += num_tokens
        return Load(self, self.rate.begin(num_bytes, now) if is_async else None)


@dataclass(eq=False)
class Load:
    """A load under way, and the blocks that it fills."""

    child: Child
    read: Read | None
    block_ids: frozenset[int] = frozenset()

    def end(self, now: float, *, is_whole: bool) -> None:
        """End the load, and note whether it failed."""
        if self.read is not None:
            self.read.ended = now
            self.child.rate.end(self.read, is_whole=is_whole)
        self.child.note_load(now, is_whole=is_whole)
