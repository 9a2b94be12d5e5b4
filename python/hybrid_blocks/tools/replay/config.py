"""Limits of the engine, the time of a step, and the errors of a replay."""

from dataclasses import dataclass, field

from hybrid_blocks.errors import HybridBlocksError


class ReplayError(HybridBlocksError, ValueError):
    """A replay that cannot run with these options."""


class RefusedRequestError(ReplayError):
    """A request that a manager cannot run even when nothing else runs.

    Attributes:
        request: its index in the trace.
    """

    def __init__(self, request: int, message: str) -> None:
        super().__init__(message)
        self.request = request


@dataclass(frozen=True, slots=True)
class StepTime:
    """A linear model of one forward pass, in seconds.

    It is ``fixed + per_prefill_token * p + per_sequence * s + per_context_token * c +
    per_prefill_pair * q``. The batch of ``s`` requests computes ``p`` prompt tokens and reads ``c``
    tokens of context. A pair, of ``q``, is a prompt token and a token before it.

    The defaults stand for a dense bf16 model of 8 billion parameters (32 layers, 8 KV heads of 128)
    on one accelerator of 989 TFLOP/s and 4.8 TB/s: 16 GB of weights read once a step and 1.5 ms of
    launches; 2 FLOP a parameter and token at half of the peak; sampling and bookkeeping; 131,072
    bytes of keys and values a token at 80 % of the bandwidth. Pairs cost nothing. They are a
    stated assumption, not a measurement, and shape virtual time only: the manager's own time is
    measured.
    """

    fixed: float = 16e9 / 4.8e12 + 1.5e-3
    per_prefill_token: float = 2 * 8e9 / (0.5 * 989e12)
    per_sequence: float = 5e-6
    per_context_token: float = 131_072 / (0.8 * 4.8e12)
    per_prefill_pair: float = 0.0

    def seconds(
        self, prefill_tokens: int, sequences: int, context_tokens: int, prefill_pairs: float = 0
    ) -> float:
        """Return the duration of one step."""
        return (
            self.fixed
            + self.per_prefill_token * prefill_tokens
            + self.per_sequence * sequences
            + self.per_context_token * context_tokens
            + self.per_prefill_pair * prefill_pairs
        )


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
        prefill_checkpoint_alignment: tokens that divide the distance from a chunk's start to a
            state that a forward pass keeps from inside it; None if chunks end there, as they do
            with drafts and with smaller checkpoints. It takes no time.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    watermark: float = 0.01
    reject_too_large: bool = False
    step_time: StepTime = field(default_factory=StepTime)
    prefill_checkpoint_alignment: int | None = 1

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ReplayError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.watermark < 1:
            raise ReplayError(f"watermark is {self.watermark}; it must be at least 0 and below 1")
