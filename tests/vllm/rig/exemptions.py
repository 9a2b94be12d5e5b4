"""Tests that reach into what a level replaces, listed one by one with the reason."""

import tomllib
from pathlib import Path

from rig.level import BATCHED

ABOVE = {"manager": ("manager",), BATCHED: ("manager", BATCHED)}
"""Whose exemptions hold at a level: what a level replaces, the ones above it replace too."""

FILE = Path(__file__).parent.parent / "exempt.toml"


def load(level: str, file: Path = FILE) -> dict[str, str]:
    """Return the exempt tests of a level and why each is.

    Raises ``ValueError`` for an entry without a reason or with a level that cannot be exempt.
    """
    entries = tomllib.loads(file.read_text()).get("exempt", [])
    for entry in entries:
        if entry["level"] not in ABOVE or len(entry["reason"]) < 10:
            levels = " and ".join(ABOVE)
            raise ValueError(
                f"{entry['test']}: only levels {levels} have exemptions, with a reason"
            )
    covering = ABOVE.get(level, ())
    return {entry["test"]: entry["reason"] for entry in entries if entry["level"] in covering}
