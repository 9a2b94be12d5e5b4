"""Which of several offers lets a request resume soonest. Imports no vLLM."""

from collections.abc import Iterable
from typing import NamedTuple


class Offer(NamedTuple):
    """The load that one connector offers.

    ``seconds`` is how long that takes; 0 where nothing was measured, so that it is tried. ``share``
    is the part of its loads that did not fail.
    """

    child: int
    num_tokens: int
    seconds: float = 0.0
    share: float = 1.0


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
