"""The counters of a replay."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals so far.

    Attributes:
        finished: requests that have all their tokens.
        rejected: requests that no empty pool could hold, left out.
        prompt_tokens: prompt tokens of admitted requests.
        output_tokens: tokens sampled.
        hit_tokens: prompt tokens found in the cache at a request's first admission.
        hit_blocks: the same in blocks.
        prompt_blocks: blocks of the prompts of admitted requests, partial ones included.
        preemptions: times that a running request lost its blocks.
        recomputed_tokens: tokens computed again after a preemption.
        peak_running: most requests running at once.
        saved_flops: FLOPs that the hits of `hit_tokens` saved.
    """

    finished: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    hit_tokens: int = 0
    hit_blocks: int = 0
    prompt_blocks: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    peak_running: int = 0
    saved_flops: float = 0.0

    @property
    def done(self) -> int:
        """Requests that need nothing more."""
        return self.finished + self.rejected
