"""Why an engine runs below a level: the one table of sentences, ``reasons.toml``.

The startup log, ``doctor``, ``plan`` and ``docs/reference/reasons.md`` show the same rows.
"""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

from hybrid_blocks.tables import read_tables

__all__ = ["REASONS", "Reason", "first", "sentence"]


class Reason(NamedTuple):
    """A row: what it keeps an engine from, and what such an engine has.

    ``sentence`` may have fields in braces.
    """

    keeps_from: str
    sentence: str
    has: str


def _listed() -> dict[str, Reason]:
    table = read_tables((files(__package__) / "reasons.toml").read_text())
    return {
        key: Reason(keeps_from, *row)
        for keeps_from, rows in table.items()
        for key, row in rows.items()
    }


REASONS: Final[Mapping[str, Reason]] = _listed()
"""All reasons by key, in the order of the reference."""


def sentence(key: str, **fields: Any) -> str:
    """Return the sentence of a reason with its fields filled in."""
    return REASONS[key].sentence.format(**fields)


def first(conditions: Mapping[str, object], **fields: Any) -> str | None:
    """Return the sentence of the first key whose condition holds, ``None`` if none does."""
    key = next((key for key, holds in conditions.items() if holds), None)
    return None if key is None else sentence(key, **fields)
