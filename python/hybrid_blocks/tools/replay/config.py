"""The limits of the engine."""

from dataclasses import dataclass, field

from hybrid_blocks.tools.replay.clock import StepTime
from hybrid_blocks.tools.replay.errors import ReplayError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The limits of a scheduler.

    Attributes:
        max_num_seqs: most requests in the batch.
        max_num_batched_tokens: most tokens computed in one step.
        watermark: share of the pool that an admission leaves free, unless nothing runs.
        reject_too_large: leave out requests that the empty pool could not hold, instead of
            refusing the replay.
        step_time: the virtual duration of a step.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    watermark: float = 0.01
    reject_too_large: bool = False
    step_time: StepTime = field(default_factory=StepTime)

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ReplayError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.watermark < 1:
            raise ReplayError(f"watermark is {self.watermark}; it must be at least 0 and below 1")
