"""One of several connectors: what it offers, and how it kept that."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hybrid_blocks.offload.tiers.rates import RETRY_AFTER, Read, ReadRate

_FAILURES_IN_A_ROW: Final = 3
"""A child rests after this number of errors in a row."""


class Offer(NamedTuple):
    """The load that one connector offers.

    ``seconds`` is how long that takes; 0 where nothing was measured, so that it is tried. ``share``
    is the part of its loads that did not fail.
    """

    child: int
    num_tokens: int
    seconds: float = 0.0
    share: float = 1.0


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


def soonest(
    offers: Iterable[Offer], num_missing: int, seconds_per_token: float | None
) -> Offer | None:
    """Return the offer after which the request has all ``num_missing`` tokens first.

    The rest is computed, and so are all of them after a load that fails. ``None`` where computing
    is no later than any load. Without a known rate of computing, the most tokens win. Of equal
    offers the one with more tokens wins, and then the first.
    """
    best: Offer | None = None
    best_cost: tuple[float, float] = (num_missing * (seconds_per_token or 0.0), 0.0)
    for offer in offers:
        if offer.num_tokens <= 0:
            continue
        gained = offer.share * offer.num_tokens
        if seconds_per_token is None:
            cost = (-gained, offer.seconds)
        else:
            done = offer.seconds + (num_missing - gained) * seconds_per_token
            cost = (done, -float(offer.num_tokens))
        if cost < best_cost:
            best, best_cost = offer, cost
    return best
