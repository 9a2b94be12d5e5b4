"""Limits of the engine, its clock, and the errors of a replay."""

import re
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.geometry.step_time import StepTime, record
from hybrid_blocks.tools.replay.counters import KINDS

_TARGET: Final = re.compile(rf"({'|'.join(KINDS)})_p(\d\d?)<(\d+(?:\.\d+)?)(ms|s)")


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


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A time that a share of requests, ``percentile``, may take at most; ``kind`` as in `KINDS`."""

    text: str
    kind: str
    percentile: int
    seconds: float

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a target such as ``ttft_p95<1s``."""
        if (match := _TARGET.fullmatch(text.replace(" ", ""))) is None:
            raise ReplayError(f"--slo {text!r}: write targets such as ttft_p95<1s,tpot_p50<40ms")
        kind, percentile, number, unit = match.groups()
        seconds = float(number) / (1e3 if unit == "ms" else 1)
        return cls(text=match[0], kind=kind, percentile=int(percentile), seconds=seconds)


def default_clock() -> StepTime:
    """Return the time of a step where no card is named: of a dense model of 8 billion parameters.

    Its kernels were measured on an H200. Virtual time then shapes how requests overlap, and no
    more.
    """
    return next(row for row in record().rows if (row.model, row.card) == ("Llama-3.1-8B", "H200"))


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
        async_scheduling: a step is scheduled as the one before it begins, as vLLM does on GPUs. A
            request that arrives meanwhile waits for the step after it.
        targets: for the times of requests, which results have; None leaves them out.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    watermark: float = 0.01
    reject_too_large: bool = False
    step_time: StepTime = field(default_factory=default_clock)
    prefill_checkpoint_alignment: int | None = 1
    async_scheduling: bool = False
    targets: tuple[Target, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ReplayError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.watermark < 1:
            raise ReplayError(f"watermark is {self.watermark}; it must be at least 0 and below 1")
