"""The environment variables that an engine with the plugin reads. Imports no vLLM."""

import os
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

import msgspec

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tables import read_tables


class Variable(msgspec.Struct, frozen=True):
    """A variable's name, the values that it takes, the value without it, and its effect."""

    name: str
    values: str
    default: str
    effect: str

    def value(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the value in an environment; empty is the default, as without the variable."""
        return environment.get(self.name) or self.default

    @property
    def choices(self) -> list[str]:
        """The values, where they are a list of words."""
        return self.values.split(", ")

    def choice(self) -> str:
        """Return the value that this process has, one of ``values``.

        Raises ``InvalidArgumentError`` for another one.
        """
        value = self.value()
        if value not in self.choices:
            raise InvalidArgumentError(f"{self.name}={value!r} is no choice; use {self.values}")
        return value


_NAMED: Final = {
    name: Variable(name, *row)
    for name, row in read_tables((files(__package__) / "variables.toml").read_text()).items()
}
LEVEL = _NAMED["HYBRID_BLOCKS"]
SCHEDULER = _NAMED["HYBRID_BLOCKS_SCHEDULER"]
CHECK = _NAMED["HYBRID_BLOCKS_CHECK"]
EVENTS = _NAMED["HYBRID_BLOCKS_EVENTS"]
CHECKPOINTS = _NAMED["HYBRID_BLOCKS_CHECKPOINTS"]
FORWARD = _NAMED["HYBRID_BLOCKS_FORWARD"]
KNOWN_PROMPTS = _NAMED["HYBRID_BLOCKS_KNOWN_PROMPTS"]
OFFLOAD = _NAMED["HYBRID_BLOCKS_OFFLOAD"]
RECORD = _NAMED["HYBRID_BLOCKS_RECORD"]
RECORD_BYTES = _NAMED["HYBRID_BLOCKS_RECORD_BYTES"]
METRICS = _NAMED["HYBRID_BLOCKS_METRICS"]

VARIABLES: Final = tuple(_NAMED.values())
"""All of them."""
