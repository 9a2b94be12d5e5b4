"""Fields and environment variables of vLLM that change no stored byte: ``same_bytes.toml``."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "same_bytes.toml").read_text())


def left_out() -> dict[str, frozenset[str]]:
    """The fields that are left out, by class."""
    names: dict[str, frozenset[str]] = {}
    for classes in _table()["fields"].values():
        for kind, fields in classes.items():
            names[kind] = names.get(kind, frozenset()).union(fields.split())
    return names


def variables() -> frozenset[str]:
    """The variables that are left out, without the prefix of vLLM's own."""
    return frozenset(" ".join(_table()["variables"].values()).split())
