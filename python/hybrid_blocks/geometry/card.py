"""Cards that vLLM runs on, and their compute capability, by which it chooses its kernels."""

import re
from typing import Final, NamedTuple

from hybrid_blocks.model import PlanError

CPU: Final = "CPU"
"""The card of vLLM's CPU engine."""


class Card(NamedTuple):
    """A kind of card: its memory, and the compute capability that picks vLLM's kernels.

    ``gib`` are what PyTorch names as its total capacity, in error messages that users published:
    less than the card is sold with. Machines of one card differ by 0.1 GiB. ``capability`` is None
    of cards that run no CUDA. ``terabytes`` a second and ``teraflops`` in bfloat16 without sparsity
    are the publisher's peaks, float16 where a card has no bfloat16.
    """

    gib: float
    capability: tuple[int, int] | None
    terabytes: float
    teraflops: float

    @property
    def total_bytes(self) -> int:
        """The total capacity in bytes."""
        return int(self.gib * 2**30)


CARDS: Final = {
    "T4": Card(14.57, (7, 5), 0.32, 65),
    "L4": Card(22.03, (8, 9), 0.3, 121),
    "A10": Card(22.06, (8, 6), 0.6, 125),
    "RTX-3090": Card(23.56, (8, 6), 0.936, 71),
    "RTX-4090": Card(23.52, (8, 9), 1.008, 165),
    "RTX-5090": Card(31.36, (12, 0), 1.792, 209),
    "V100-32GB": Card(31.74, (7, 0), 0.9, 125),
    "A100-40GB": Card(39.49, (8, 0), 1.555, 312),
    "L40S": Card(44.39, (8, 9), 0.864, 362),
    "RTX-A6000": Card(47.40, (8, 6), 0.768, 155),
    "RTX-6000-Ada": Card(47.40, (8, 9), 0.96, 364),
    "A100-80GB": Card(79.25, (8, 0), 2.039, 312),
    "H100-80GB": Card(79.11, (9, 0), 3.35, 989),
    "H100-94GB": Card(93.00, (9, 0), 3.938, 835),
    "RTX-PRO-6000": Card(94.97, (12, 0), 1.792, 504),
    "H200": Card(139.80, (9, 0), 4.8, 989),
    "B200": Card(178.35, (10, 0), 8, 2250),
    "MI300X": Card(191.98, None, 5.3, 1307),
}


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
