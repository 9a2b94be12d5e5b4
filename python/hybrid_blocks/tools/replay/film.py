"""A replay as it can be shown: what each slab holds at many times, every look-up, and some hits."""

from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hybrid_blocks.tools.plan import ArenaPlan

MOST_FRAMES: Final = 400
MOST_TILES: Final = 1000

NO_CHECKPOINT: Final = "no_checkpoint"

Slabs = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.uint16]
Places = npt.NDArray[np.int32]
"""Slabs, each with the pool that has it; shape ``[n, 2]``."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lookup:
    """The last look-up of a request before it first ran.

    Attributes:
        limit: why the hit is not longer, as `BlockManager.match_limit` has it.
        attention_tokens: prompt tokens whose attention was there, if only a state ended the hit.
    """

    limit: str
    attention_tokens: int | None


def slabs_of_a_tile(num_slabs: int) -> int:
    """Return of how many slabs a film keeps one, so that it has ``MOST_TILES`` at most."""
    return -(-num_slabs // MOST_TILES)


class Frame(NamedTuple):
    """Slabs at one time; with many slabs, one of `slabs_of_a_tile`.

    Attributes:
        seconds: virtual time.
        slabs: who holds each slab. 0 is a slab that no frame saw an owner of. A request holds
            blocks in a slab of ``2 * pool + 1``. The pool held ``2 * pool + 2`` last, by blocks or
            a checkpoint.
        live: blocks of each slab that running requests hold.
        used: blocks of each slab that held something since its pool took it.
    """

    seconds: float
    slabs: Slabs
    live: Counts
    used: Counts


@dataclass(slots=True)
class Hit:
    """Where a request's prompt lies when it first runs.

    Attributes:
        request: of the trace.
        tokens: that were found.
        found: of each block with some of them.
        checkpoint: of the states from which the request resumes.
        computed: of each block of attention after the hit, in the order of the prompt.
    """

    request: int
    tokens: int
    found: Places
    checkpoint: Places
    computed: Places


@dataclass(slots=True)
class Thinned(Generic[T]):
    """At most ``2 * MOST_FRAMES`` of many things, spread evenly over their order.

    Each is kept at first. Each time that there are too many, every second one goes, and new ones
    are kept half as often.
    """

    kept: list[T] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0

    def is_time(self) -> bool:
        """Count a thing, and return whether it is to be kept."""
        self._seen += 1
        return self._seen % self._every == 0

    def add(self, thing: T) -> None:
        """Keep a thing."""
        self.kept.append(thing)
        if len(self.kept) > 2 * MOST_FRAMES:
            self.kept = self.kept[1::2]
            self._every *= 2


@dataclass(slots=True)
class Film:
    """Frames of an arena at samples of the engine, hits, and look-ups.

    Attributes:
        geometry: of the arena.
        frames: in the order of time.
        hits: in the order in which their prompts were computed.
        lookups: the look-up of each request of the trace that ran.
    """

    geometry: ArenaPlan
    frames: Thinned[Frame] = field(default_factory=Thinned)
    hits: Thinned[Hit] = field(default_factory=Thinned)
    lookups: dict[int, Lookup] = field(default_factory=dict)
