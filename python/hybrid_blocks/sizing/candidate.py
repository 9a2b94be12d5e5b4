"""The deployments that a search chooses from, the cheapest first."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hybrid_blocks.plan.memory import parse_cards
from hybrid_blocks.sizing.errors import SizingError
from hybrid_blocks.sizing.speed import SPEED
from hybrid_blocks.units import human, parse_count, parse_memory

MOST_CARDS: Final = 64

_GIB: Final = 2**30
_PRICE: Final = re.compile(r"([^=]+)=(\d{1,9}(?:\.\d{1,9})?)")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Equal cards, and what they cost an hour.

    A model is split over ``count`` of them; ``replicas`` of that share out the requests. Each
    replica has ``host_bytes`` of host memory.
    """

    card: str
    count: int
    cost: float
    replicas: int = 1
    host_bytes: int = 0

    @property
    def name(self) -> str:
        """A replica's cards as ``--gpu`` takes them, its host memory, and how many replicas."""
        cards = f"{self.count}x{self.card}"
        if self.host_bytes:
            cards += f" with {human(self.host_bytes)} of host memory"
        return cards if self.replicas == 1 else f"{self.replicas} replicas of {cards}"


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """Read ``H100-80GB=2.5``, one for each card.

    Raises:
        SizingError: no price, or two of one card.
        PlanError: no such card.

    """
    prices: dict[str, float] = {}
    for text in texts:
        match = _PRICE.fullmatch(text.strip())
        if match is None or not math.isfinite(price := float(match[2])) or price == 0:
            raise SizingError(f"--price {text!r}: write a card and its price, as H100-80GB=2.5")
        card = card_of(match[1])
        if card in prices:
            raise SizingError(f"--price names {card} twice; leave one out")
        prices[card] = price
    return prices


def card_of(text: str, option: str = "--gpu") -> str:
    """Return the name of one card whose speed is known.

    Raises:
        PlanError: no such card.
        SizingError: several of them, or a card that is given by its size.

    """
    cards = parse_cards(text)
    if cards.count is not None or cards.name not in SPEED:
        raise SizingError(f"{option} {text}: name one kind of card, of {', '.join(SPEED)}")
    return cards.name


def parse_counts(text: str, option: str = "--tp") -> list[int]:
    """Read ``1,2,4,8``.

    Raises:
        InvalidArgumentError: no such numbers.

    """
    return [parse_count(one, option, MOST_CARDS) for one in text.split(",")]


def parse_hosts(text: str) -> list[int]:
    """Read ``0,64GiB``.

    Raises:
        InvalidArgumentError: no such sizes.

    """
    return [0 if one.strip() == "0" else parse_memory(one, "--host") for one in text.split(",")]


def make_candidates(
    cards: Sequence[str],
    counts: Sequence[int],
    prices: Mapping[str, float],
    replicas: Sequence[int] = (1,),
    *,
    hosts: Sequence[int] = (0,),
    host_price: float = 0.0,
) -> list[Candidate]:
    """Return every card in every number, with host memory of every size of ``hosts`` in bytes.

    Without prices the bytes of all cards are the cost. ``host_price`` is that of a GiB.

    Raises:
        SizingError: some cards have a price and others none.

    """
    if prices and (without := [card for card in cards if card not in prices]):
        raise SizingError(
            f"--price says nothing of {', '.join(without)}; give each card of --gpu a price"
        )
    found = [
        Candidate(
            card=card,
            count=count,
            cost=num * (count * _cost(card, prices) + host / _GIB * host_price),
            replicas=num,
            host_bytes=host,
        )
        for card in cards
        for count in counts
        for num in replicas
        for host in hosts
    ]
    return sorted(found, key=lambda one: (one.cost, one.host_bytes, one.replicas, one.count))


def _cost(card: str, prices: Mapping[str, float]) -> float:
    return prices[card] if prices else parse_cards(card).total_bytes / _GIB
