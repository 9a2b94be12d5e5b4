"""Cards and the memory that a process finds on them."""

import re
from difflib import get_close_matches
from typing import Final

import msgspec

from hybrid_blocks.model import PlanError
from hybrid_blocks.units import parse_memory

_GIB: Final = 2**30

GIB: Final = {
    "T4": 14.57,
    "L4": 22.03,
    "A10": 22.06,
    "RTX-3090": 23.56,
    "RTX-4090": 23.52,
    "RTX-5090": 31.36,
    "V100-32GB": 31.74,
    "A100-40GB": 39.49,
    "L40S": 44.39,
    "RTX-A6000": 47.40,
    "RTX-6000-Ada": 47.40,
    "A100-80GB": 79.25,
    "H100-80GB": 79.11,
    "H100-94GB": 93.00,
    "RTX-PRO-6000": 94.97,
    "H200": 139.80,
    "B200": 178.35,
    "MI300X": 191.98,
}
"""GiB that PyTorch names as a card's total capacity, in error messages that users published.

It is less than what the card is sold with. Machines of one card differ by 0.1 GiB.
"""

_OTHER_NAMES: Final = {
    "A10G": "A10",
    "A100": "A100-80GB",
    "H100": "H100-80GB",
    "H100-NVL": "H100-94GB",
    "3090": "RTX-3090",
    "4090": "RTX-4090",
    "5090": "RTX-5090",
    "A6000": "RTX-A6000",
    "H200-141GB": "H200",
    "B200-180GB": "B200",
    "MI300X-192GB": "MI300X",
}
_FORM: Final = re.compile(r"(?:(\d+)\s*[x×*]\s*)?(.+)", re.IGNORECASE)  # noqa: RUF001 -- people write it


class Cards(msgspec.Struct, frozen=True, kw_only=True):
    """Equal cards. ``count`` is None where only the kind was given."""

    name: str
    total_bytes: int
    count: int | None


def parse_cards(text: str) -> Cards:
    """Read ``2xH100-80GB``, ``H200`` or ``2x48GiB``.

    Raises:
        PlanError: neither a card of the table nor a size.

    """
    match = _FORM.fullmatch(text.strip())
    if match is None or match[1] == "0":
        raise PlanError(
            f"--gpu {text!r}: write a card such as 2xH100-80GB, or a size such as 48GiB"
        )
    count = None if match[1] is None else int(match[1])
    named = re.sub(r"[\s_]+", "-", match[2].strip()).lower()
    known = {name.lower(): name for name in GIB}
    known |= {other.lower(): name for other, name in _OTHER_NAMES.items()}
    for alias in (named, named.removeprefix("nvidia-").removeprefix("geforce-")):
        if alias in known:
            name = known[alias]
            return Cards(name=name, total_bytes=int(GIB[name] * _GIB), count=count)
    if re.match(r"\d+(\.\d+)?\s*[KMGT]i?B$", match[2].strip(), re.IGNORECASE):
        return Cards(
            name=match[2].strip(), total_bytes=parse_memory(match[2], "--gpu"), count=count
        )
    near = get_close_matches(named, known, n=1)
    meant = f"; did you mean {known[near[0]]}?" if near else ""
    raise PlanError(
        f"--gpu {text}: no such card; known are {', '.join(GIB)}, or give its GiB: 48GiB{meant}"
    )
