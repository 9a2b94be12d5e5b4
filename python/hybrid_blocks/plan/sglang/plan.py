"""SGLang's plan: a pool of states and a pool of tokens, cut once by a ratio.

Follows ``_handle_max_mamba_cache``, ``resolve_max_num_reqs`` and the pool configurators of 0.5.23.
"""

import math
from typing import Final

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan.deployment import Deployment, SglangOptions
from hybrid_blocks.plan.sglang.costs import Costs, costs
from hybrid_blocks.plan.sglang.strategy import SLOTS, Strategy, strategies
from hybrid_blocks.units import human

RATIO: Final = 0.9
"""Default of ``--mamba-full-memory-ratio``: bytes of states for each byte of tokens."""

WINDOW_RATIO: Final = 0.8
"""Default of ``--swa-full-tokens-ratio``: tokens of the windows' pool for each of the other."""

_FREED_EACH: Final = 128
"""Tokens after which SGLang frees what lies behind a window."""

_GIB: Final = 2**30


class SglangPlan(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang's pools in ``memory_bytes`` of each GPU.

    ``strategy`` and what belongs to states are None for models without, ``window_tokens`` where
    windows have no pool of their own. ``token_budget`` are the bytes that the states' pool leaves.
    """

    costs: Costs
    strategy: Strategy | None
    ratio: float | None
    memory_bytes: int
    state_slots: int | None
    tokens: int
    window_tokens: int | None
    max_num_seqs: int
    token_budget: int

    @property
    def slots_per_request(self) -> int | None:
        """State slots that a running request takes."""
        return None if self.strategy is None else SLOTS[self.strategy]

    @property
    def state_cap(self) -> int | None:
        """Requests for which there are state slots."""
        if self.state_slots is None or self.slots_per_request is None:
            return None
        return self.state_slots // self.slots_per_request

    @property
    def max_running(self) -> int:
        """SGLang's cap on running requests, however short they are."""
        cap = min(self.max_num_seqs, self.tokens // 2)
        return cap if self.state_cap is None else min(cap, self.state_cap)

    def concurrency(self, length: int) -> float:
        """Requests of ``length`` tokens that the pools hold."""
        held = self.tokens / length
        if self.window_tokens is not None:
            held = min(held, self.window_tokens / self.window_held(length))
        return held if self.state_cap is None else min(held, self.state_cap)

    def window_held(self, length: int) -> int:
        """Tokens of the windows' pool that a request of ``length`` tokens holds."""
        return min(length, (self.costs.window or length) + _FREED_EACH + 2)

    def running(self, length: int) -> float:
        """Return `concurrency`, within the cap."""
        return min(self.concurrency(length), self.max_running)

    def idle_bytes(self, length: int) -> int:
        """Bytes of tokens that stay empty while as many requests run as can."""
        held = math.floor(self.running(length)) * length
        return max(self.tokens - held, 0) * self.costs.token_bytes


def plan_sglang(
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    *,
    strategy: Strategy | None = None,
    ratio: float | None = None,
) -> SglangPlan:
    """Split memory as SGLang does; the deployment's options, then SGLang's defaults, fill in None.

    Raises:
        PlanError: as `costs`, or the memory is too small.

    """
    each, given = costs(model, deployment), deployment.sglang or SglangOptions()
    strategy, ratio = strategy or given.strategy, ratio or given.ratio or RATIO
    if not each.state_bytes:
        strategy = None
    elif deployment.mamba_cache_mode == "none":
        strategy = "off"
    else:
        strategy = strategy or strategies(model.model_type)[0]
    return split(each, memory_bytes, deployment, strategy, ratio)


def split(
    each: Costs,
    memory_bytes: int,
    deployment: Deployment,
    strategy: Strategy | None,
    ratio: float,
) -> SglangPlan:
    """Cut the pools.

    Raises:
        PlanError: the memory is too small.

    """
    rest, slots = memory_bytes / _GIB, None
    if strategy is not None:
        slots, rest = _state_pool(each.state_bytes, rest, deployment, strategy, ratio)
    tokens = int(int(rest * _GIB) // (each.token_bytes + WINDOW_RATIO * each.window_bytes))
    if tokens < 1 or (slots is not None and slots < 1):
        raise PlanError(f"{human(memory_bytes)} are too small for SGLang's pools")
    return SglangPlan(
        costs=each,
        strategy=strategy,
        ratio=None if strategy in {None, "off"} else ratio,
        memory_bytes=memory_bytes,
        state_slots=slots,
        tokens=tokens,
        window_tokens=None if each.window is None else int(tokens * WINDOW_RATIO),
        max_num_seqs=_most_running(deployment),
        token_budget=int(rest * _GIB),
    )


def _most_running(deployment: Deployment) -> int:
    given = deployment.sglang and deployment.sglang.max_running
    return given or deployment.max_num_seqs


def draft_states(deployment: Deployment) -> int:
    """States that SGLang keeps besides for each running request, to verify a draft."""
    tokens = deployment.num_speculative_tokens
    return tokens + 1 if tokens else 0


def _state_pool(
    each: int, rest: float, deployment: Deployment, strategy: Strategy, ratio: float
) -> tuple[int, float]:
    """Slots of the state pool, and GiB that are left. One slot more is padding."""
    drafts, per_request = draft_states(deployment), SLOTS[strategy]
    if strategy == "off":
        slots = running = _most_running(deployment)
    else:
        budget = rest * ratio / (1 + ratio) * _GIB
        slots = int((budget - each * (1 + drafts)) // (each * (1 + drafts / per_request)))
        running = min(_most_running(deployment), slots // per_request)
    if drafts:
        rest -= each * (running + 1) * drafts / _GIB
    return slots, rest - (slots + 1) * each / _GIB
