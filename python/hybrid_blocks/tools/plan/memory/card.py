"""Cards as people name them, and the memory that a process finds on them."""

import re
from difflib import get_close_matches
from typing import Final

import msgspec

from hybrid_blocks.geometry.card import CARDS
from hybrid_blocks.model import PlanError
from hybrid_blocks.units import parse_memory

SOLD: Final = {
    16: ("T4",),
    24: ("L4", "A10", "RTX-4090", "RTX-3090"),
    32: ("RTX-5090", "V100-32GB"),
    40: ("A100-40GB",),
    48: ("L40S", "RTX-A6000", "RTX-6000-Ada"),
    80: ("H100-80GB", "A100-80GB"),
    94: ("H100-94GB",),
    96: ("RTX-PRO-6000",),
    141: ("H200",),
    180: ("B200",),
    192: ("MI300X",),
}
"""Cards by the GB that they are sold with, the one with the least memory first."""

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
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", re.IGNORECASE)


class Cards(msgspec.Struct, frozen=True, kw_only=True):
    """Equal cards. ``count`` is None where only the kind was given; ``note`` says how it was read.

    A kind such as ``80GB`` has no exact size: it stands on cards of several sizes. ``kind`` is the
    card of the table whose memory it is, None where only GiB were given.
    """

    name: str
    total_bytes: int
    count: int | None
    kind: str | None = None
    note: str | None = None


def parse_cards(text: str) -> Cards:
    """Read ``2xH100-80GB``, ``H200``, ``2x48GiB`` or ``80GB``, which is what cards are sold with.

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
    known = {name.lower(): name for name in CARDS}
    known |= {other.lower(): name for other, name in _OTHER_NAMES.items()}
    for alias in (named, named.removeprefix("nvidia-").removeprefix("geforce-")):
        if alias in known:
            name = known[alias]
            return Cards(name=name, total_bytes=CARDS[name].total_bytes, count=count, kind=name)
    if (size := _SIZE.fullmatch(match[2].strip())) is not None:
        return _of_size(match[2].strip(), size, count)
    near = get_close_matches(named, known, n=1)
    meant = f"; did you mean {known[near[0]]}?" if near else ""
    raise PlanError(
        f"--gpu {text}: no such card; known are {', '.join(CARDS)}, or give its GiB: 48GiB{meant}"
    )


def _of_size(text: str, size: re.Match[str], count: int | None) -> Cards:
    """Take GiB as they are, and GB as the least that a card sold with them has."""
    total = parse_memory(text, "--gpu")
    if size[2].upper() != "GB":
        return Cards(name=text, total_bytes=total, count=count)
    names = SOLD.get(int(float(size[1])), ()) if float(size[1]).is_integer() else ()
    if not names:
        note = f"--gpu {text} is read as {total / 2**30:.2f} GiB: no known card is sold with it"
        return Cards(name=text, total_bytes=total, count=count, note=note)
    each = ", ".join(f"{name} {CARDS[name].gib:.2f}" for name in names)
    kind = names[0]
    note = (
        f"--gpu {text} is read as {CARDS[kind].gib:.2f} GiB, the least of the cards sold with it "
        f"({each}); name the card, or give its GiB"
    )
    total = CARDS[kind].total_bytes
    return Cards(name=text, total_bytes=total, count=count, kind=kind, note=note)
