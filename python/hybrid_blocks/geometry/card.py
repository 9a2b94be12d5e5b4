"""Cards that vLLM runs on, and their compute capability, by which it chooses its kernels."""

import re
import tomllib
from importlib.resources import files
from typing import Final

import msgspec

from hybrid_blocks.model import PlanError

CPU: Final = "CPU"
"""The card of vLLM's CPU engine."""


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of card, as ``cards.toml`` says; ``capability`` picks vLLM's kernels."""

    gib: float
    terabytes: float
    teraflops: float
    sold: int
    capability: tuple[int, int] | None = None
    also: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """The total capacity in bytes."""
        return int(self.gib * 2**30)


CARDS: Final = msgspec.convert(
    tomllib.loads((files(__package__) / "cards.toml").read_text()), dict[str, Card]
)


def capability(card: str | None) -> tuple[int, int]:
    """Return a card's compute capability, zeros of one without CUDA and of none.

    Raises:
        PlanError: a card that is not known.
    """
    if card is None or card == CPU:
        return (0, 0)
    if card not in CARDS:
        raise PlanError(f"no card {card}; known are {', '.join((*CARDS, CPU))}")
    return CARDS[card].capability or (0, 0)


def find(device_name: str, total_bytes: int) -> str | None:
    """Return the card that a driver's name and the card's memory mean, None if it is not known."""
    words = set(re.split(r"[\s\-]+", device_name.upper()))
    named = [
        name
        for name in CARDS
        if {word for word in name.upper().split("-") if not word.endswith("GB")} <= words
    ]
    return min(
        named,
        key=lambda name: (-name.count("-"), abs(CARDS[name].total_bytes - total_bytes)),
        default=None,
    )
