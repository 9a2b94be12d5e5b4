"""Tests that reach into what a level replaces, listed with the reason."""

import tomllib
from collections.abc import Collection
from pathlib import Path

from rig.level import BATCHED, OFFLOAD

ABOVE = {
    "manager": ("manager",),
    BATCHED: ("manager", BATCHED),
    "natural": ("manager", "natural"),
    OFFLOAD: (OFFLOAD,),
}
"""Whose exemptions hold at a level: what a level replaces, the ones above it replace too."""

MAX_SHARE = 0.05
MAX_SHARES = {OFFLOAD: 0.15}
"""The share of a suite that may be exempt. vLLM tests its own policies and layout of offload."""

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


def max_share(level: str) -> float:
    """Return which share of a suite's tests may be exempt at a level."""
    return MAX_SHARES.get(level, MAX_SHARE)


def entry_of(test: str, exempt: Collection[str]) -> str | None:
    """Return the entry that covers a test: its own, its function's, its class's or its file's."""
    if test in exempt:
        return test
    name, _, _ = test.partition("[")
    while name and name not in exempt:
        name, _, _ = name.rpartition("::")
    return name or None
