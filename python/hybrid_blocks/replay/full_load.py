"""How well memory is used while somebody waits for it."""

from dataclasses import dataclass


@dataclass(slots=True)
class FullLoad:
    """Sums over the steps in which a request waited for memory or was preempted.

    Taken before the requests that a step finishes give their memory back.

    Attributes:
        steps: how many.
        live_bytes: what the running requests could not do without; see `LiveBytes`.
        used_bytes: what was reserved for them.
        running: requests in the batch.
        efficiency: live bytes over used bytes.
        needless_waits: steps in which the first that waits was refused though it would have fit.
    """

    steps: int = 0
    live_bytes: int = 0
    used_bytes: int = 0
    running: int = 0
    efficiency: float = 0.0
    needless_waits: int = 0

    def add(self, live_bytes: int, used_bytes: int, running: int, steps: int) -> None:
        """Add a sample that stands for ``steps`` steps."""
        self.steps += steps
        self.live_bytes += live_bytes * steps
        self.used_bytes += used_bytes * steps
        self.running += running * steps
        self.efficiency += live_bytes / max(used_bytes, 1) * steps

    @property
    def memory_efficiency(self) -> float | None:
        """Live bytes over used bytes, mean over the steps; None if no request ever waited."""
        return self.efficiency / self.steps if self.steps else None

    @property
    def live_bytes_per_request(self) -> float | None:
        """Mean live bytes of a running request; None if no request ever waited."""
        return self.live_bytes / self.running if self.running else None
