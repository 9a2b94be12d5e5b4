"""Fields and variables that change no stored byte (``same_bytes.toml``), and values of others."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from vllm import envs

from hybrid_blocks.offload.identity.canonical import UnwritableError


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "same_bytes.toml").read_text())


def left_out() -> dict[str, frozenset[str]]:
    """The fields of vLLM that are left out, by class."""
    names: dict[str, frozenset[str]] = {}
    for classes in _table()["fields"].values():
        for kind, fields in classes.items():
            names[kind] = names.get(kind, frozenset()).union(fields.split())
    return names


def variables_left_out() -> frozenset[str]:
    """The environment variables of vLLM that are left out; the table has no ``VLLM_``."""
    known = envs.environment_variables
    names = " ".join(_table()["variables"].values()).split()
    return frozenset(f"VLLM_{it}" if f"VLLM_{it}" in known else it for it in names)


def environment() -> dict[str, Any]:
    """The variables that count, as vLLM reads them.

    Raises:
        UnwritableError: one of them has a value that vLLM refuses.
    """
    values = {}
    for name in sorted(envs.environment_variables.keys() - variables_left_out()):
        try:
            values[name] = envs.environment_variables[name]()
        except (ValueError, TypeError, KeyError) as error:
            raise UnwritableError(f"the environment variable {name} ({error})") from None
    return values
