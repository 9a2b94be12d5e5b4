"""The levels at which vLLM's block management can be replaced."""

import os
from enum import StrEnum

from hybrid_blocks import CheckpointPolicy, variables
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.model.layer import StateFormat
from hybrid_blocks.units import parse_memory

VARIABLE = variables.LEVEL.name
SCHEDULER = variables.SCHEDULER.name
CHECK = variables.CHECK.name
EVENTS = variables.EVENTS.name
CHECKPOINTS = variables.CHECKPOINTS.name
KNOWN_PROMPTS = variables.KNOWN_PROMPTS.name


class Level(StrEnum):
    """How much of vLLM's block management is replaced."""

    OFF = "off"
    """Nothing."""
    POOL = "pool"
    """``BlockPool``, under vLLM's own managers."""
    MANAGER = "manager"
    """``KVCacheManager`` with everything below it, where it covers the engine."""
    NATURAL = "natural"
    """``KVCacheManager``, and the plan of the memory: slabs instead of equal blocks."""


def requested() -> Level:
    """Return the level that the environment asks for; ``manager`` if it says nothing.

    Raises ``InvalidArgumentError`` for a value that names no level.
    """
    value = os.environ.get(VARIABLE, variables.LEVEL.default)
    try:
        return Level(value)
    except ValueError:
        levels = ", ".join(Level)
        raise InvalidArgumentError(f"{VARIABLE}={value!r} names no level; use {levels}") from None


def schedules_in_one_call() -> bool:
    """Return whether the plugin may put its schedulers in place of vLLM's two.

    Raises ``InvalidArgumentError`` for another value than ``one-call`` and ``off``.
    """
    value = os.environ.get(SCHEDULER) or variables.SCHEDULER.default
    if value not in ("one-call", "off"):
        raise InvalidArgumentError(f"{SCHEDULER}={value!r} names no scheduler; use one-call, off")
    return value == "one-call"


def is_checked() -> bool:
    """Return whether the environment asks for a check of where each block's content comes from."""
    return os.environ.get(CHECK, "0") not in ("", "0")


def publishes_usable_only() -> bool:
    """Return whether KV-cache events are to name only attention that a hit can use.

    Raises ``InvalidArgumentError`` for a value that is neither ``all`` nor ``usable``.
    """
    value = os.environ.get(EVENTS) or variables.EVENTS.default
    if value not in ("all", "usable"):
        raise InvalidArgumentError(f"{EVENTS}={value!r} names no choice of events; use all, usable")
    return value == "usable"


def checkpoints() -> str:
    """Return where level ``natural`` keeps states, and in which format.

    Raises ``InvalidArgumentError`` for a value that is no placement.
    """
    value = os.environ.get(CHECKPOINTS) or variables.CHECKPOINTS.default
    try:
        return str(CheckpointPolicy(value))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{CHECKPOINTS}={value!r}: {error}") from None


def checkpoint_format() -> StateFormat:
    """Return the format in which level ``natural`` is to keep states.

    Raises ``InvalidArgumentError`` for a value that is no placement.
    """
    asked: StateFormat = CheckpointPolicy(checkpoints()).options["format"]
    return asked


def max_known_bytes() -> int:
    """Return how much memory prompts may take that are kept so as not to be hashed again.

    Raises ``InvalidArgumentError`` for a value that is neither 0 nor a size.
    """
    value = os.environ.get(KNOWN_PROMPTS, variables.KNOWN_PROMPTS.default)
    if value == "0":
        return 0
    try:
        return parse_memory(value)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"{KNOWN_PROMPTS}={value!r} is no size; write for example 256MiB, or 0 to keep none"
        ) from None
