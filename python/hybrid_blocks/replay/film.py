"""A replay as it can be shown: who holds each slab at many times, and every look-up."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

MOST_FRAMES: Final = 400

NO_CHECKPOINT: Final = "no_checkpoint"

Slabs = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The last look-up of a request before it first ran.

    Attributes:
        limit: why the hit is not longer, as `BlockManager.match_limit` has it.
        attention_tokens: prompt tokens whose attention was there, if only a state ended the hit.
    """

    limit: str
    attention_tokens: int | None


@dataclass(slots=True)
class Film:
    """Frames of an arena, and look-ups.

    A frame has a number for each slab. 0 is a slab that no frame saw an owner of. A request holds
    blocks in a slab of ``2 * pool + 1``. The pool held ``2 * pool + 2`` last, by blocks or a
    checkpoint.

    A frame is taken at every sample of the engine at first. Each time that there are too many,
    every second one goes, and frames come half as often.

    Attributes:
        seconds: virtual time of each frame.
        slabs: the frames.
        lookups: the look-up of each request of the trace that ran.
    """

    seconds: list[float] = field(default_factory=list)
    slabs: list[Slabs] = field(default_factory=list)
    lookups: dict[int, Lookup] = field(default_factory=dict)
    _every: int = 1
    _samples: int = 0

    def is_time(self) -> bool:
        """Count a sample, and return whether it is to be a frame."""
        self._samples += 1
        return self._samples % self._every == 0

    def add(self, seconds: float, slabs: Slabs) -> None:
        """Append a frame."""
        self.seconds.append(seconds)
        self.slabs.append(slabs)
        if len(self.slabs) > 2 * MOST_FRAMES:
            self.seconds, self.slabs = self.seconds[1::2], self.slabs[1::2]
            self._every *= 2
