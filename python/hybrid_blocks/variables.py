"""The environment variables that an engine with the plugin reads. Imports no vLLM."""

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from hybrid_blocks.errors import InvalidArgumentError


class Variable(msgspec.Struct, frozen=True):
    """A variable's name, the values that it takes, the value without it, and its effect."""

    name: str
    values: str
    default: str
    effect: str

    def value(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the value in an environment; empty is the default, as without the variable."""
        return environment.get(self.name) or self.default

    def choice(self) -> str:
        """Return the value that this process has, one of ``values``.

        Raises ``InvalidArgumentError`` for another one.
        """
        value = self.value()
        if value not in self.values.split(", "):
            raise InvalidArgumentError(f"{self.name}={value!r} is no choice; use {self.values}")
        return value


LEVEL: Final = Variable(
    "HYBRID_BLOCKS",
    "off, pool, manager, natural",
    "manager",
    "The level: how much of vLLM's block management the plugin replaces.",
)
SCHEDULER: Final = Variable(
    "HYBRID_BLOCKS_SCHEDULER",
    "one-call, off",
    "one-call",
    "off leaves vLLM's own schedulers, which take decoding requests one by one.",
)
CHECK: Final = Variable(
    "HYBRID_BLOCKS_CHECK",
    "0, 1",
    "0",
    "1 compares every hit, fork, copy and hand-out with what its block was written from.",
)
EVENTS: Final = Variable(
    "HYBRID_BLOCKS_EVENTS",
    "all, usable",
    "all",
    "The blocks that KV-cache events name: all, or at level natural those that a hit can use.",
)
FORWARD: Final = Variable(
    "HYBRID_BLOCKS_FORWARD",
    "pieces, whole",
    "pieces",
    "whole leaves vLLM's forward alone: at level natural chunks of prompts end at checkpoints.",
)
KNOWN_PROMPTS: Final = Variable(
    "HYBRID_BLOCKS_KNOWN_PROMPTS",
    "a size such as 64MiB, 0",
    "256MiB",
    "Memory for the hashes of earlier prompts; 0 keeps none.",
)
CHECKPOINTS: Final = Variable(
    "HYBRID_BLOCKS_CHECKPOINTS",
    "learned, fixed:N[+N], geometric, every:N, none",
    "learned",
    "Where level natural keeps states; options follow, as in learned/max_per_request=8.",
)
OFFLOAD: Final = Variable(
    "HYBRID_BLOCKS_OFFLOAD",
    "0, 1",
    "0",
    "1 lets --kv-offloading-size use this package's offload instead of vLLM's, at every level.",
)
RECORD: Final = Variable(
    "HYBRID_BLOCKS_RECORD",
    "a file such as traffic.jsonl.zst",
    "",
    "The engine records its traffic without prompts into this file, at every level.",
)
RECORD_BYTES: Final = Variable(
    "HYBRID_BLOCKS_RECORD_BYTES",
    "a size such as 100MiB",
    "1GiB",
    "The most bytes of one such file; the next file gets a number.",
)
METRICS: Final = Variable(
    "HYBRID_BLOCKS_METRICS",
    "a folder",
    "",
    "The plugin sets it: engines leave their figures there for /metrics.",
)

VARIABLES: Final = (
    *(LEVEL, SCHEDULER, CHECK, EVENTS, CHECKPOINTS, FORWARD, KNOWN_PROMPTS, OFFLOAD),
    *(RECORD, RECORD_BYTES, METRICS),
)
"""All of them."""
