"""The data that the page of a plan shows: what `Report` says, at many lengths."""

from typing import Final

import msgspec

from hybrid_blocks.model import Model
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.geometry import plan_natural
from hybrid_blocks.plan.geometry.arena import ArenaPlan
from hybrid_blocks.plan.report.plan_report import FullOf, PlanReport
from hybrid_blocks.plan.report.report import Report, make_report
from hybrid_blocks.plan.report.verdict import typical_lengths
from hybrid_blocks.plan.vllm import VllmPlan, plan_vllm
from hybrid_blocks.units import human
from hybrid_blocks.view.held import Run, held_in_blocks, held_in_slabs
from hybrid_blocks.view.plan_text import deployment_text, layers_text, name_text
from hybrid_blocks.view.two_pools import TwoPools, two_pools

SHORTEST: Final = 128
"""Tokens of the shortest request that a page shows."""

STEPS_PER_DOUBLING: Final = 4

_SAME: Final = 0.005
"""A smaller share of the requests is no difference."""

TYPICAL: Final = 8192
"""Tokens of the request that a page shows first."""

NATURAL, VLLM = "level natural", "vLLM 0.33"


class Full(msgspec.Struct, frozen=True, kw_only=True):
    """A memory full of requests of one length.

    ``shown`` is how many whole requests run at once; ``binds`` says what keeps more out.
    ``runs`` are those of one request, ``parts`` bytes as the tables have them, and ``shares`` the
    same as shares of the memory.
    """

    requests: int
    concurrency: float
    running: float
    shown: str
    binds: str
    runs: tuple[Run, ...]
    parts: dict[str, str]
    shares: dict[str, float]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One plan at every length of the page.

    ``unit`` is a block of vLLM's, or a slab; ``blocks`` says how large attention's blocks are.
    """

    name: str
    unit: str
    unit_bytes: int
    unit_text: str
    blocks: str
    null_bytes: int
    tail_bytes: int
    at: tuple[Full, ...]


class PlanPicture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the page of a plan draws.

    ``lengths`` are those that its slider reaches, ``start`` the first one shown. ``sides`` are
    vLLM's plan, if there is one, and the natural one; ``is_same`` if they hold the same requests.
    ``pools`` are SGLang's, if it has two.
    """

    model: str
    layers: str
    deployment: str
    verdict: tuple[str, ...]
    is_same: bool
    memory_bytes: int
    max_num_seqs: int
    lengths: tuple[int, ...]
    start: int
    sides: tuple[Side, ...]
    pools: TwoPools | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def make_plan_picture(
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    report: Report,
    card: str | None = None,
) -> PlanPicture:
    """Plan the lengths of a slider beside those of a report.

    The memory is an estimate for ``card``, where there is one.

    The slider starts at the first length of ``--lengths``, else at 8,192 tokens.

    Raises:
        PlanError: as `make_report`.

    """
    asked = [one.length for one in report.natural.lengths]
    lengths = sorted({*asked, *_steps(report.max_model_len)})
    every = make_report(model, memory_bytes, deployment, lengths)
    wanted = asked[1] if len(asked) > 1 else min(TYPICAL, report.max_model_len)
    start = min(range(len(lengths)), key=lambda index: abs(lengths[index] - wanted))
    geometry = plan_natural(model, memory_bytes, deployment)
    sides = [_natural(geometry, every.natural, lengths)]
    if every.vllm is not None:
        sides.insert(0, _vllm(plan_vllm(model, memory_bytes, deployment), every.vllm, lengths))
    return PlanPicture(
        model=name_text(model),
        layers=layers_text(model, report),
        deployment=deployment_text(report, card),
        verdict=_verdict(model, memory_bytes, deployment, report),
        is_same=_is_same(every),
        memory_bytes=memory_bytes,
        max_num_seqs=deployment.max_num_seqs,
        lengths=tuple(lengths),
        start=start,
        sides=tuple(sides),
        pools=two_pools(model, memory_bytes, deployment, every, lengths),
        notes=report.notes,
        warnings=report.warnings,
    )


def _verdict(
    model: Model, memory_bytes: int, deployment: Deployment, report: Report
) -> tuple[str, ...]:
    """Return the verdict on the lengths of a report, or on typical ones if it has none."""
    if len(report.natural.lengths) == 1:
        typical = typical_lengths(report.max_model_len)
        report = make_report(model, memory_bytes, deployment, typical)
    return report.verdict.lines if report.verdict else ()


def _is_same(report: Report) -> bool:
    """Return whether both plans hold as many requests at every length."""
    if report.vllm is None:
        return False
    pairs = zip(report.natural.lengths, report.vllm.lengths, strict=True)
    return all(
        abs(ours.concurrency - theirs.concurrency) <= _SAME * theirs.concurrency
        for ours, theirs in pairs
    )


def _steps(longest: int) -> list[int]:
    steps, index = [], 0
    while (length := round(SHORTEST * 2 ** (index / STEPS_PER_DOUBLING))) < longest:
        # A number that a person would write: four steps a doubling differ by more than 16 tokens.
        steps.append(length // 16 * 16)
        index += 1
    return steps


def _natural(geometry: ArenaPlan, plan: PlanReport, lengths: list[int]) -> Side:
    return Side(
        name=NATURAL,
        unit="slab",
        unit_bytes=geometry.slab_bytes,
        unit_text=human(geometry.slab_bytes),
        blocks=_blocks(plan),
        null_bytes=geometry.slab_bytes,
        tail_bytes=geometry.memory_bytes - geometry.arena_bytes,
        at=tuple(
            _full(full, held_in_slabs(geometry, full.length)) for full in _sorted(plan, lengths)
        ),
    )


def _vllm(vllm: VllmPlan, plan: PlanReport, lengths: list[int]) -> Side:
    return Side(
        name=VLLM,
        unit="block",
        unit_bytes=vllm.block_bytes,
        unit_text=human(vllm.block_bytes),
        blocks=_blocks(plan),
        null_bytes=vllm.block_bytes,
        tail_bytes=vllm.memory_bytes - vllm.num_blocks * vllm.block_bytes,
        at=tuple(_full(full, held_in_blocks(vllm, full.length)) for full in _sorted(plan, lengths)),
    )


def _blocks(plan: PlanReport) -> str:
    return f"attention keeps blocks of {plan.block_tokens:,} tokens"


def _sorted(plan: PlanReport, lengths: list[int]) -> list[FullOf]:
    by_length = {full.length: full for full in plan.lengths}
    return [by_length[length] for length in lengths]


def _full(full: FullOf, runs: tuple[Run, ...]) -> Full:
    budget = full.budget
    return Full(
        requests=budget.requests,
        concurrency=full.concurrency,
        running=full.running,
        shown=_whole(full),
        binds=_binds(full, runs),
        runs=runs,
        parts={name: human(nbytes) for name, nbytes in budget.parts.items()},
        shares={name: nbytes / budget.total for name, nbytes in budget.parts.items()},
    )


def _whole(full: FullOf) -> str:
    """Return how many whole requests run, and whether an option caps them."""
    capped = " (max_num_seqs)" if full.running < full.concurrency else ""
    return f"{int(full.running):,}{capped}"


def _binds(full: FullOf, runs: tuple[Run, ...]) -> str:
    """Say what keeps one more request out, and who takes most of a request's memory."""
    if full.running < full.concurrency:
        return f"max_num_seqs binds: memory would hold {int(full.concurrency):,}"
    held: dict[str, int] = {}
    for run in runs:
        held[run.owner] = held.get(run.owner, 0) + run.total
    whole = sum(held.values())
    told = ", ".join(
        f"{owner} {nbytes / whole:.0%}"
        for owner, nbytes in sorted(held.items(), key=lambda item: -item[1])
    )
    return f"memory binds: a request takes {human(whole)}, {told}"
