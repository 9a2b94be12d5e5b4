"""SGLang's unified memory: one buffer, in which tokens and the other pool's entries meet.

Follows ``config_from_budget``, ``init_unified_mamba_pools`` and ``MultiEndedAllocator`` of 0.5.23.
"""

from typing import Final

import msgspec

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.model import PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.sglang.plan import WINDOW_RATIO, SglangPlan

_ALIGNED: Final = 4096
"""A budget is cut to a multiple of these bytes."""

_ENTRY: Final = 32
"""A token's entry is filled up to a multiple of these bytes."""


class Unified(msgspec.Struct, frozen=True, kw_only=True):
    """The buffer of ``--enable-unified-memory``; the cap on running requests is the split's.

    Tokens grow down from its end, the ``other`` entries, states or tokens of windows, up from its
    beginning, behind a sink of one entry.
    """

    split: SglangPlan
    total_bytes: int
    token_bytes: int
    other_bytes: int

    @property
    def sink(self) -> int:
        """Other entries that the sink at the beginning takes."""
        return ceil_div(max(self.token_bytes, self.other_bytes), self.other_bytes)

    def tokens_beside(self, others: int) -> int:
        """Count the tokens that fit beside ``others``."""
        slots = self.total_bytes // self.token_bytes
        free = slots * self.token_bytes - (self.sink + others) * self.other_bytes
        lowest = ceil_div(max(self.token_bytes, self.other_bytes), self.token_bytes)
        return min(free // self.token_bytes, slots - lowest)

    def concurrency(self, length: int) -> float:
        """Requests of ``length`` tokens that the buffer holds, each with all its states."""
        each = self.split.slots_per_request or self.split.window_held(length)
        request = length + each * self.other_bytes / self.token_bytes
        return self.tokens_beside(0) / request

    def running(self, length: int) -> float:
        """Return `concurrency`, within SGLang's cap on running requests."""
        return min(self.concurrency(length), self.split.max_running)


def plan_unified(split: SglangPlan, deployment: Deployment) -> Unified:
    """Put the pools of a split into one buffer.

    Raises:
        PlanError: SGLang has no such buffer for the model, or it is not planned.

    """
    if split.state_slots is None and split.window_tokens is None:
        raise PlanError("SGLang's unified memory wants states, or windows with a pool of their own")
    if deployment.num_speculative_tokens:
        raise PlanError(
            "unified memory is not planned with drafts: SGLang puts the drafter's layers into the "
            "model's own entries"
        )
    if split.window_tokens is not None:
        split = _most_tokens(split)
    each, states = split.costs, split.state_slots or 0
    # What the split left to tokens, and its states; the padding slot is not part of it.
    budget = split.token_budget // _ALIGNED * _ALIGNED
    return Unified(
        split=split,
        total_bytes=budget + states * each.state_bytes,
        token_bytes=ceil_div(each.token_bytes, _ENTRY) * _ENTRY,
        other_bytes=each.state_bytes or ceil_div(each.window_bytes, _ENTRY) * _ENTRY,
    )


def _most_tokens(split: SglangPlan) -> SglangPlan:
    """Round as SGLang does here: the most tokens that fit with their whole tokens of windows."""
    each, tokens = split.costs, split.tokens + 1
    windows = int(tokens * WINDOW_RATIO)
    if tokens * each.token_bytes + windows * each.window_bytes > split.memory_bytes:
        return split
    return msgspec.structs.replace(split, tokens=tokens, window_tokens=windows)
