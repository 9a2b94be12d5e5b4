"""Tests that reach into what a level replaces, listed with the reason."""

import tomllib
from collections.abc import Collection
from pathlib import Path

from rig.level import BATCHED

ABOVE = {"manager": ("manager",), BATCHED: ("manager", BATCHED), "natural": ("manager", "natural")}
"""Whose exemptions hold at a level: what a level replaces, the ones above it replace too."""

MAX_SHARE = 0.05
"""The share of a suite that may be exempt."""

FILE = Path(__file__).parent.parent / "exempt.toml"


def load(level: str, file: Path = FILE) -> dict[str, str]:
    """Return the exempt tests of a level and why each is: see `entry_of` for their names.

    Raises ``ValueError`` for an entry without a reason or with a level that cannot be exempt.
    """
    entries = tomllib.loads(file.read_text()).get("exempt", [])
    for entry in entries:
        if entry["level"] not in ABOVE or len(entry["reason"]) < 10:
            levels = ", ".join(ABOVE)
            raise ValueError(
                f"{entry['test']}: only levels {levels} have exemptions, with a reason"
            )
    covering = ABOVE.get(level, ())
    return {entry["test"]: entry["reason"] for entry in entries if entry["level"] in covering}


def entry_of(test: str, exempt: Collection[str]) -> str | None:
    """Return the entry that covers a test: its own, or its function's."""
    return next((it for it in (test, test.partition("[")[0]) if it in exempt), None)
