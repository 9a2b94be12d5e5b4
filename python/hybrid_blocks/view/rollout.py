"""What to know of an engine before level ``natural`` runs in it, from its command."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

import hybrid_blocks
from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.model import PlanError
from hybrid_blocks.pasted.case import Case, read_case
from hybrid_blocks.pasted.options import recorded
from hybrid_blocks.plan.geometry import plan_natural
from hybrid_blocks.plan.report.report import Report, make_report
from hybrid_blocks.plan.vllm import plan_vllm
from hybrid_blocks.view.queries import Query, queries

SPECS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "full": "FullAttention",
        "mla": "MLAAttention",
        "sliding_window": "SlidingWindow",
        "chunked": "ChunkedLocalAttention",
        "cross": "CrossAttention",
        "state": "Mamba",
        "mamba": "Mamba",
        "ring": "Ring",
    }
)
"""vLLM's classes for the kinds of groups of both plans, without their last word."""

_LEVEL: Final = re.compile(r"\bHYBRID_BLOCKS=\S*")
_CONTAINER: Final = re.compile(r"\b(?:docker|podman|nerdctl)\s+(?:run|create)\b")
_SERVER: Final = re.compile(r"\b(?:vllm\s+serve|python[\d.]*\s+-m\s+vllm)\b")


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas that the users need, if each one runs ``running`` requests at once."""

    name: str
    running: int
    replicas: int
    gpus: int


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Level ``natural`` in one engine.

    ``level`` is what ``HYBRID_BLOCKS=natural`` reaches, ``reason`` why no more. ``variables`` are
    to be set, and ``command`` is the pasted one with them, where it is clear how to set them.
    ``fleets`` are vLLM alone and this level, for ``users`` requests at once of ``length`` tokens.
    """

    model: str
    level: str
    reason: str | None
    variables: tuple[str, ...]
    command: str | None
    log_line: str
    queries: tuple[Query, ...]
    length: int
    users: int
    fleets: tuple[Fleet, ...]
    verdict: tuple[str, ...]
    notes: tuple[str, ...]


def make_rollout(
    command: str, memory: str | None, gpu: str | None, length: int, users: int
) -> Rollout:
    """Plan a pasted command at level ``natural`` and beside it.

    Raises:
        PlanError: as `read_case`; or no request of ``length`` tokens fits.

    """
    case = read_case([command], None, memory, gpu)
    longest = case.deployment.length(case.model)
    length = min(length, longest)
    report = make_report(case.model, case.memory_bytes, case.deployment, [length])
    refusal = case.refusal
    variables = ["HYBRID_BLOCKS=natural"]
    if refusal is not None and refusal.remedy:
        variables.append(refusal.remedy)
        refusal = None
    level = "natural" if refusal is None else "manager"
    fleets = _fleets(case, report, level, length, users)
    log_line, total = _log_line(case, level, None if refusal is None else refusal.reason)
    return Rollout(
        model=case.model.name,
        level=level,
        reason=None if refusal is None else refusal.reason,
        variables=tuple(variables),
        command=with_variables(command, variables),
        log_line=log_line,
        queries=queries(level, total, fleets[-1].running, length),
        length=length,
        users=users,
        fleets=fleets,
        verdict=report.verdict.lines if report.verdict else (),
        notes=report.notes,
    )


def with_variables(command: str, variables: Iterable[str]) -> str | None:
    """Return a command with variables set, None where no one can tell how."""
    text, more = command.strip(), []
    for variable in variables:
        if variable.startswith("HYBRID_BLOCKS=") and _LEVEL.search(text):
            text = _LEVEL.sub(variable, text)
        else:
            more.append(variable)
    if not more:
        return text
    if found := _CONTAINER.search(text):
        options = "".join(f" -e {one}" for one in more)
        return f"{text[: found.end()]}{options}{text[found.end() :]}"
    if found := _SERVER.search(text):
        return f"{text[: found.start()]}{shlex.join(more)} {text[found.start() :]}"
    return None


def _fleets(case: Case, report: Report, level: str, length: int, users: int) -> tuple[Fleet, ...]:
    gpus = case.deployment.tp * case.deployment.pp
    made = []
    for name, plan in (
        ("vLLM alone", report.vllm),
        (f"level {level}", report.natural if level == "natural" else report.vllm),
    ):
        if plan is None:
            continue
        running = int(next(full for full in plan.lengths if full.length == length).running)
        if not running:
            raise PlanError(f"no request of {length:,} tokens fits: {name}")
        replicas = ceil_div(users, running)
        made.append(Fleet(name=name, running=running, replicas=replicas, gpus=replicas * gpus))
    if not made:
        raise PlanError("vLLM refuses this engine, so no level runs in it")
    return tuple(made)


def _log_line(case: Case, level: str, reason: str | None) -> tuple[str, int]:
    """Return the line of the engine's log, and how many slabs or blocks it names."""
    if level == "natural":
        arena = plan_natural(case.model, case.memory_bytes, case.deployment)
        kinds: list[str] = [group.kind for group in arena.groups]
        total, unit = arena.num_slabs, "slabs"
    else:
        plan = plan_vllm(case.model, case.memory_bytes, case.deployment)
        kinds = [group.spec.kind for group in plan.groups]
        total, unit = plan.num_blocks, "blocks"
    counts = Counter(SPECS[kind] for kind in kinds)
    groups = ", ".join(f"{count} {name}" for name, count in counts.items())
    why = f" ({reason})" if reason else ""
    line = (
        f"hybrid_blocks {hybrid_blocks.__version__} in vLLM {recorded().release}.0: "
        f"level {level}{why}; groups: {groups}; pool: {total:,} {unit}"
    )
    return line, total
