"""The levels at which vLLM's block management can be replaced, and which of them an engine gets."""

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from hybrid_blocks import CheckpointPolicy, variables
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.reasons import sentence
from hybrid_blocks.units import parse_memory
from hybrid_blocks.vllm import surface
from hybrid_blocks.vllm.surface import Tier, support

if TYPE_CHECKING:
    from hybrid_blocks.model.layer import StateFormat

VARIABLE = variables.LEVEL.name
SCHEDULER = variables.SCHEDULER.name
CHECK = variables.CHECK.name
EVENTS = variables.EVENTS.name
FORWARD = variables.FORWARD.name
CHECKPOINTS = variables.CHECKPOINTS.name
KNOWN_PROMPTS = variables.KNOWN_PROMPTS.name


class Level(StrEnum):
    """How much of vLLM's block management is replaced."""

    OFF = "off"
    """vLLM manages its blocks alone."""
    POOL = "pool"
    """``BlockPool``, under vLLM's own managers."""
    MANAGER = "manager"
    """``KVCacheManager`` with everything below it, where it covers the engine."""
    NATURAL = "natural"
    """``KVCacheManager``, and the plan of the memory: slabs instead of equal blocks."""


def requested() -> Level:
    """Return the level that the environment asks for, ``manager`` by default."""
    return Level(variables.LEVEL.choice())


def schedules_in_one_call() -> bool:
    """Return whether the plugin may put its schedulers in place of vLLM's two."""
    return variables.SCHEDULER.choice() == "one-call"


def is_checked() -> bool:
    """Return whether the environment asks for a check of where each block's content comes from."""
    return variables.CHECK.choice() == "1"


def cuts_forwards() -> bool:
    """Return whether state layers may run in pieces, so that chunks need not end at checkpoints."""
    return variables.FORWARD.choice() == "pieces"


def publishes_usable_only() -> bool:
    """Return whether KV-cache events are to name only attention that a hit can use."""
    return variables.EVENTS.choice() == "usable"


def checkpoints() -> str:
    """Return where level ``natural`` keeps states, and in which format.

    Raises ``InvalidArgumentError`` for a value that is no placement.
    """
    value = variables.CHECKPOINTS.value()
    try:
        return str(CheckpointPolicy(value))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{CHECKPOINTS}={value!r}: {error}") from None


def checkpoint_format() -> "StateFormat":
    """Return the format in which level ``natural`` is to keep states.

    Raises ``InvalidArgumentError`` for a value that is no placement.
    """
    asked: StateFormat = CheckpointPolicy(checkpoints()).options["format"]
    return asked


def max_known_bytes() -> int:
    """Return how much memory prompts may take that are kept so as not to be hashed again.

    Raises ``InvalidArgumentError`` for a value that is neither 0 nor a size.
    """
    value = variables.KNOWN_PROMPTS.value()
    if value == "0":
        return 0
    try:
        return parse_memory(value)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"{KNOWN_PROMPTS}={value!r} is no size; write for example 256MiB, or 0 to keep none"
        ) from None


MOST_NAMED: Final = 8
"""Differences that a message names; the rest are counted."""


class Grant(NamedTuple):
    """The level that runs, and how the installed vLLM differs from the needs of higher ones."""

    level: Level
    differences: tuple[str, ...] = ()

    @property
    def reason(self) -> str | None:
        """Return in words what stands in the way of more, or ``None`` if nothing does."""
        if not self.differences:
            return None
        named = "; ".join(self.differences[:MOST_NAMED])
        more = len(self.differences) - MOST_NAMED
        named += f"; and {more} more" if more > 0 else ""
        return sentence("differs", version=_installed(), differences=named)


def grant(level: Level) -> Grant:
    """Return the highest level up to ``level`` that does not need what the vLLM here lacks."""
    if level is Level.OFF:
        return Grant(Level.OFF)
    found = _differences()
    if found[Tier.POOL]:
        return Grant(Level.OFF, tuple(found[Tier.POOL]))
    if level is Level.POOL:
        return Grant(Level.POOL)
    if found[Tier.MANAGER]:
        return Grant(Level.POOL, tuple(found[Tier.MANAGER]))
    if level is Level.NATURAL and (found := _differences(natural=True))[Tier.NATURAL]:
        return Grant(Level.MANAGER, tuple(found[Tier.NATURAL]))
    return Grant(level)


def scheduler_grant() -> Grant:
    """Return whether requests may be scheduled in one call: what differs, if they may not."""
    granted = grant(requested())
    if granted.level in (Level.OFF, Level.POOL):
        return granted
    return Grant(granted.level, tuple(_differences()[Tier.SCHEDULER]))


def worker_grant(level: Level) -> Grant:
    """Return whether workers may copy blocks by this package's kernels: what differs, if not."""
    return Grant(level, tuple(_differences()[Tier.WORKER]))


def forward_grant() -> Grant:
    """Return whether forwards may leave prefill checkpoints: what differs, if they may not.

    Workers ask, as the comparison imports vLLM's model runners.
    """
    return Grant(Level.NATURAL, _forward_differences())


def is_tested() -> bool:
    """Return whether the tests of this package ran with the release that is installed."""
    return support.is_tested(_installed())


@cache
def _differences(*, natural: bool = False) -> dict[Tier, list[str]]:
    """Compare all needs but those of level ``natural``, or these: no other imports its modules."""
    but = [tier for tier in Tier if (tier is Tier.NATURAL) is not natural]
    return surface.differences(_installed(), but)


@cache
def _forward_differences() -> tuple[str, ...]:
    return tuple(surface.part_differences("forward", _installed()))


def _installed() -> str:
    # The levels are also read where vLLM is missing.
    import vllm  # noqa: PLC0415

    return vllm.__version__
