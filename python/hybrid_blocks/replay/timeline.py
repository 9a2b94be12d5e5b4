"""Samples of a replay over virtual time."""

from array import array
from dataclasses import dataclass, field

from hybrid_blocks.replay.film import Film


@dataclass(slots=True)
class Timeline:
    """Samples over virtual time, struct of arrays; each holds since the one before it.

    One is taken at the end of a step, before finished requests are freed. Another is taken at the
    end of a time in which nothing ran. ``admitted`` and ``hit_tokens`` have one entry a request
    instead.

    Attributes:
        seconds: virtual time.
        used_blocks: blocks with an owner.
        running: requests in the batch.
        waiting: requests that have arrived and hold nothing.
        admitted: requests of the trace in the order of their first admission.
        hit_tokens: prompt tokens that each of them found in the cache.
        admitted_at: when each of them first ran.
        film: the arena and the look-ups, where a film was wanted.
    """

    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    used_blocks: "array[int]" = field(default_factory=lambda: array("q"))
    running: "array[int]" = field(default_factory=lambda: array("q"))
    waiting: "array[int]" = field(default_factory=lambda: array("q"))
    admitted: "array[int]" = field(default_factory=lambda: array("q"))
    hit_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    admitted_at: "array[float]" = field(default_factory=lambda: array("d"))
    film: Film | None = None

    def add(self, seconds: float, used_blocks: int, running: int, waiting: int) -> None:
        """Append a sample."""
        self.seconds.append(seconds)
        self.used_blocks.append(used_blocks)
        self.running.append(running)
        self.waiting.append(waiting)

    def admit(self, request: int, hit_tokens: int) -> None:
        """Note the first admission of a request."""
        self.admitted.append(request)
        self.hit_tokens.append(hit_tokens)
        self.admitted_at.append(self.seconds[-1] if self.seconds else 0.0)
