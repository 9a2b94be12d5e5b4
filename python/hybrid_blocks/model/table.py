"""The built-in table of models.

``table.json`` holds, under each name, the ``config.json`` fields that the planner reads, and how
far they were verified. ``like`` takes the fields of another entry; ``counts`` gives the number of
layers of each kind where their order is not known: they are then spread evenly.
"""

from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from hybrid_blocks.model.architecture.common import spread
from hybrid_blocks.model.errors import PlanError


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table."""

    status: Literal["verified", "partly verified", "unverified"]
    config: dict[str, object] | None = None
    like: str | None = None
    counts: dict[str, int] | None = None
    notes: tuple[str, ...] = ()


@cache
def entries() -> dict[str, Entry]:
    """All rows by name."""
    text = files("hybrid_blocks.model").joinpath("table.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Entry])


def find(name: str) -> tuple[str, Entry]:
    """Row of a name, in any case and with or without the owner before a slash.

    Raises:
        PlanError: no such name; says which names come near.

    """
    by_key = {known.lower(): known for known in entries()}
    key = name.rsplit("/", 1)[-1].lower()
    if key in by_key:
        return by_key[key], entries()[by_key[key]]
    near = get_close_matches(key, by_key, n=3, cutoff=0.5)
    hint = f"; near it: {', '.join(by_key[other] for other in near)}" if near else ""
    raise PlanError(f"{name}: neither a file, a directory nor a built-in model{hint}")


def fields(entry: Entry) -> tuple[dict[str, object], tuple[str, ...]]:
    """``config.json`` fields of a row, and what a reader of the plan should know about them."""
    source = entry if entry.like is None else entries()[entry.like]
    config = dict(source.config or {})
    notes = entry.notes
    if entry.counts:
        config["hybrid_override_pattern"] = "".join(spread(entry.counts))
        notes += ("the order of the layers is not known; they are spread evenly",)
    return config, notes
