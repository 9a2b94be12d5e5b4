"""What an engine at level ``natural`` logs of its slabs, next to the plan of as many."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.pasted.log_figures import Figure, Figures, memory_of
from hybrid_blocks.pasted.log_lines import Logged
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.geometry import capacity, plan_natural
from hybrid_blocks.plan.geometry.arena import ArenaPlan
from hybrid_blocks.plan.vllm import VllmPlan, plan_vllm
from hybrid_blocks.units import human

_GIB: Final = 2**30
_ROOM: Final = 2**50


def is_logged(log: Logged) -> bool:
    """Return whether the engine ran at level ``natural``."""
    return log.last("slabs") is not None


def compare(log: Logged, model: Model, deployment: Deployment) -> Figures:
    """Plan the logged slabs, within the logged memory, and put both next to each other.

    Raises:
        PlanError: level ``natural`` cannot serve the model.

    """
    slab = plan_natural(model, _ROOM, deployment).slab_bytes
    least = int((log.last("slabs") or "0").replace(",", "")) * slab
    gib = memory_of(log)
    memory = least if gib is None else min(max(int(gib * _GIB), least), least + slab - 1)
    vllm = None
    with suppress(PlanError):
        vllm = plan_vllm(model, memory, deployment)
    plan = plan_natural(model, memory, deployment)
    return Figures(
        memory_bytes=memory,
        is_memory_logged=gib is not None,
        figures=tuple(_figures(log, plan, vllm, deployment.length(model))),
        explanation=None,
    )


def _figures(log: Logged, plan: ArenaPlan, vllm: VllmPlan | None, length: int) -> Iterator[Figure]:
    blocks = theirs = None
    if vllm is not None:
        blocks, theirs = f"{vllm.num_blocks:,}", f"{vllm.max_concurrency:.2f}"
    for name, fact, planned in (
        ("max length", "length", f"{length:,}"),
        ("slabs", "slabs", f"{plan.num_slabs:,}"),
        ("a slab", "slab", human(plan.slab_bytes)),
        ("tokens", "tokens", f"{capacity.tokens(plan, length):,}"),
        ("concurrency", "natural_concurrency", f"{capacity.concurrency(plan, length):.2f}"),
        ("vLLM's blocks", "vllm_blocks", blocks),
        ("vLLM's concurrency", "vllm_concurrency", theirs),
    ):
        yield Figure(name=name, logged=log.last(fact), planned=planned)
