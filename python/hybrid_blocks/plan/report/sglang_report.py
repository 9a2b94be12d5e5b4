"""SGLang's pools as data, next to both plans."""

from collections.abc import Sequence
from typing import Final

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.report.plan_report import AtLength
from hybrid_blocks.plan.sglang import (
    SglangPlan,
    Strategy,
    best_ratio,
    plan_sglang,
    plan_unified,
    strategies,
)

RELEASE: Final = "0.5.23"


class SglangAtLength(AtLength, frozen=True, kw_only=True):
    """Capacity for requests of one length.

    With ``best_ratio`` most of them run: ``best_running``. ``idle_bytes`` of the token pool stay
    empty at the default ratio. In unified memory ``unified_running`` of them run, None where SGLang
    has none or it is not planned.
    """

    idle_bytes: int
    best_ratio: float | None
    best_running: float | None
    unified_running: float | None


class SglangPools(msgspec.Struct, frozen=True, kw_only=True):
    """The two pools under one strategy of the scheduler; it is None for models without states."""

    strategy: Strategy | None
    ratio: float | None
    state_bytes: int
    state_slots: int | None
    slots_per_request: int | None
    tokens: int
    window_tokens: int | None
    max_running: int
    lengths: tuple[SglangAtLength, ...]
    trace: AtLength | None


class SglangReport(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang's figures for the same bytes, first those of the strategy that it takes."""

    release: str
    strategies: tuple[SglangPools, ...]


def report_sglang(
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    lengths: Sequence[int],
    trace: Sequence[int],
) -> SglangReport:
    """Plan SGLang's pools under each strategy that the model can take.

    Raises:
        PlanError: SGLang is not planned for the model or an option, or its pools are too small.

    """
    first = plan_sglang(model, memory_bytes, deployment)
    plans = [first]
    if first.ratio is not None:
        plans += [
            plan_sglang(model, memory_bytes, deployment, strategy=strategy)
            for strategy in strategies(model.model_type)
            if strategy != first.strategy
        ]
    return SglangReport(
        release=RELEASE,
        strategies=tuple(_pools(plan, deployment, lengths, trace) for plan in plans),
    )


def _pools(
    plan: SglangPlan, deployment: Deployment, lengths: Sequence[int], trace: Sequence[int]
) -> SglangPools:
    return SglangPools(
        strategy=plan.strategy,
        ratio=plan.ratio,
        state_bytes=plan.costs.state_bytes,
        state_slots=plan.state_slots,
        slots_per_request=plan.slots_per_request,
        tokens=plan.tokens,
        window_tokens=plan.window_tokens,
        max_running=plan.max_running,
        lengths=tuple(_at(plan, deployment, length) for length in dict.fromkeys(lengths)),
        trace=_at_mean(plan, round(sum(trace) / len(trace))) if trace else None,
    )


def _at(plan: SglangPlan, deployment: Deployment, length: int) -> SglangAtLength:
    best = None if plan.ratio is None else best_ratio(plan, deployment, length)
    try:
        unified = plan_unified(plan, deployment).running(length)
    except PlanError:
        unified = None
    fields = msgspec.structs.asdict(_at_mean(plan, length))
    return SglangAtLength(
        **fields,
        idle_bytes=plan.idle_bytes(length),
        best_ratio=None if best is None else best.ratio,
        best_running=None if best is None else best.running(length),
        unified_running=unified,
    )


def _at_mean(plan: SglangPlan, length: int) -> AtLength:
    running = plan.running(length)
    return AtLength(
        length=length,
        concurrency=plan.concurrency(length),
        running=running,
        tokens=int(running * length),
    )


def try_sglang(
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    lengths: Sequence[int],
    trace: Sequence[int],
) -> tuple[SglangReport | None, str | None]:
    """Return the report, or why there is none."""
    try:
        return report_sglang(model, memory_bytes, deployment, lengths, trace), None
    except PlanError as error:
        return None, str(error)
