"""The ratio of states to tokens with which most requests of one length run."""

import math
from typing import Final

from hybrid_blocks.model import PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.sglang.plan import SglangPlan, draft_states, split

_STEPS: Final = 10_000
"""Steps between 0 and 1: a ratio has four digits."""

_LARGEST: Final = 1_000


def best_ratio(plan: SglangPlan, deployment: Deployment, length: int) -> SglangPlan:
    """Return the plan that runs most requests of ``length`` tokens; ``plan`` itself if none more.

    Each number of requests has a least ratio that gives it enough states, and that one leaves most
    tokens. So the largest number that still has tokens is found by halving.
    """
    best = plan
    low = math.floor(plan.running(length)) + 1
    high = min(plan.max_num_seqs, plan.memory_bytes // max(plan.costs.state_bytes, 1))
    while low <= high:
        middle = (low + high) // 2
        found = _with_states_for(middle, plan, deployment)
        if found is not None and found.running(length) >= middle:
            best, low = found, middle + 1
        else:
            high = middle - 1
    return best


def _with_states_for(requests: int, plan: SglangPlan, deployment: Deployment) -> SglangPlan | None:
    """Split with the least ratio that has state slots for that many requests, None without."""
    drafts = draft_states(deployment)
    each = (plan.slots_per_request or 1) + drafts
    states = (requests * each + 1 + drafts) * plan.costs.state_bytes
    if states >= plan.memory_bytes:
        return None
    ratio = math.ceil(states / (plan.memory_bytes - states) * _STEPS) / _STEPS
    try:
        return split(plan.costs, plan.memory_bytes, deployment, plan.strategy, min(ratio, _LARGEST))
    except PlanError:
        return None
