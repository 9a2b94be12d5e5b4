"""Owners of memory, and the colors and hatches of pages: one for each owner and each loss."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

OWNERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attention": "#4c78a8",
        "latent attention": "#4c78a8",
        "states": "#f58518",
        "windows": "#3f9e96",
        "chunks": "#3f9e96",
        "cross attention": "#a2679f",
        "index keys": "#8c6d46",
    }
)

OWNER_OF_KIND: Final[Mapping[str, str]] = MappingProxyType(
    {
        "full": "attention",
        "mla": "latent attention",
        "sliding_window": "windows",
        "chunked": "chunks",
        "cross": "cross attention",
        "state": "states",
        "mamba": "states",
        "ring": "index keys",
    }
)
"""Names of owners, by the kinds of groups of both plans."""

PADDED: Final = "#fdeceb"
PADDING: Final = "#c62828"
ROUNDED: Final = "#eef0f3"
ROUNDING: Final = "#6b7280"
NULL: Final = "#3b4048"
UNUSED: Final = "#ffffff"
TAIL: Final = "#d5d9df"
FOUND: Final = "#12a150"
AGAIN: Final = "#d1242f"
INK: Final = "#1b1f24"


def swatch(color: str) -> str:
    """Return the style of a small square of a legend."""
    return f"background:{color}"


def hatched(color: str, lines: str) -> str:
    """Return the style of a square with diagonal lines."""
    return f"background:repeating-linear-gradient(135deg,{color} 0 3px,{lines} 3px 4.5px)"


def dotted(color: str, dots: str) -> str:
    """Return the style of a square with dots."""
    return f"background:radial-gradient({dots} 1px,{color} 1.5px) 0 0/5px 5px"


def pale(color: str) -> str:
    """Return a color mixed with white, for what no running request holds."""
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.4 * (255 - part)):02x}" for part in parts)
