"""Tests that reach into what a level replaces, listed one by one with the reason."""

import tomllib
from pathlib import Path

FILE = Path(__file__).parent.parent / "exempt.toml"


def load(level: str, file: Path = FILE) -> dict[str, str]:
    """Return the exempt tests of a level and why each is.

    Raises ``ValueError`` for an entry without a reason or with a level that cannot be exempt.
    """
    entries = tomllib.loads(file.read_text()).get("exempt", [])
    for entry in entries:
        if entry["level"] != "manager" or len(entry["reason"]) < 10:
            raise ValueError(f"{entry['test']}: only level manager has exemptions, with a reason")
    return {entry["test"]: entry["reason"] for entry in entries if entry["level"] == level}
