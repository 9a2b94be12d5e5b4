"""``hybrid-blocks doctor --model``: the level of an engine, its cost, and the line of the log."""

import logging
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

import hybrid_blocks
from hybrid_blocks import variables
from hybrid_blocks.terminal import plain
from hybrid_blocks.tools.cli.plan_case import case_of_command
from hybrid_blocks.tools.doctor.environment import allow_no_gpu, need_vllm
from hybrid_blocks.tools.doctor.features import check_model
from hybrid_blocks.tools.plan.natural_refusals import natural_refusals
from hybrid_blocks.tools.plan.report import Plan
from hybrid_blocks.tools.read.features import Asked
from hybrid_blocks.units import human, parse_memory
from hybrid_blocks.vllm.level import Level

if TYPE_CHECKING:
    from hybrid_blocks.tools.doctor.answer import Reach

LESS_THAN_ASKED = 3
"""The exit code where the engine reaches less than the command or the options ask for."""

_LENGTH = 8192
_SCHEDULERS = ("hybrid_blocks.vllm.Scheduler", "hybrid_blocks.vllm.AsyncScheduler")


def print_reach(asked: Asked, memory: str, *, is_given: bool) -> None:
    """Print how far an engine gets, what that costs, and what its log will say.

    ``memory`` is a default unless it ``is_given``.

    Raises:
        InvalidArgumentError: vLLM is not installed.
        PlanError: the memory holds no request of the maximum length.
        typer.Exit: it gets less than its command asks for.
    """
    command = asked.command
    check_model(command.model, asked.features)
    cost = _cost(asked, memory, is_given=is_given)
    allow_no_gpu()
    need_vllm(", or read docs/coverage.md: the level of every built-in model with every feature")
    found, release = _reach(asked)
    lines = [
        f"model          {command.model.name}",
        "by             an engine of the installed vLLM, without weights",
        _line("natural", found.level is Level.NATURAL, found.why_not_natural),
        _line("manager", found.manager_level is Level.MANAGER, found.why_not_manager),
        _line("one call", found.is_one_call, found.why_not_one_call),
        f"HYBRID_BLOCKS=natural reaches level {found.level}",
        f"decoding requests are scheduled: {_scheduled(found)}",
        f"cost           {cost}",
        f"log            {_log_line(found, release, Level.NATURAL)}",
    ]
    if command.level != Level.NATURAL:
        lines.append(f"log by default {_log_line(found, release, Level.MANAGER)}")
    events = variables.EVENTS.value()
    lines.append(f"events         {variables.EVENTS.name}={events}: {variables.EVENTS.effect}")
    if found.level is Level.NATURAL and command.level != Level.NATURAL:
        record = f"{variables.RECORD.name}=FILE"
        lines.append(f"beside it      {record}, then hybrid-blocks shadow FILE: what natural gains")
    level = command.level or "manager, as HYBRID_BLOCKS is not set"
    lines.append(f"this command: level {level}, scheduler {asked.scheduler or 'by default'}")
    typer.echo("\n".join(map(plain, lines)))
    if not _is_reached(asked, found):
        typer.echo(f"the engine reaches less than that: exit code {LESS_THAN_ASKED}")
        raise typer.Exit(LESS_THAN_ASKED)


def _is_reached(asked: Asked, found: "Reach") -> bool:
    """Return whether the engine reaches the level and the scheduler that its command asks for."""
    levels, level = list(Level), Level(asked.command.level or Level.MANAGER)
    reached = found.level if level is Level.NATURAL else found.manager_level
    is_one_call = asked.scheduler not in _SCHEDULERS or found.is_one_call
    return levels.index(reached) >= levels.index(level) and is_one_call


def _scheduled(found: "Reach") -> str:
    """Return which code schedules, under the variables of this process."""
    name = variables.SCHEDULER.name
    if not found.is_one_call or variables.SCHEDULER.value() == "off":
        return "one by one, by vLLM"
    return f"in {found.scheduler}; {name}=off switches this off"


def _reach(asked: Asked) -> tuple["Reach", str]:
    """Return the answer of the installed vLLM, and its release."""
    import vllm  # noqa: PLC0415

    from hybrid_blocks.tools.doctor.answer import reach  # noqa: PLC0415 - wants vLLM
    from hybrid_blocks.vllm.surface.support import release_of  # noqa: PLC0415

    model, deployment = asked.command.model, asked.command.deployment
    refused = next(iter(natural_refusals(model, deployment)), None)
    # An engine that serves no request logs nothing that a user needs.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        found = reach(model, asked.features, refused)
    finally:
        logging.disable(before)
    return found, release_of(vllm.__version__) or vllm.__version__


def _log_line(found: "Reach", release: str, asked: Level) -> str:
    """Return the line with which the engine says at start what is active, without its sizes."""
    if asked is Level.NATURAL:
        level, reason = found.level, found.why_not_natural
    else:
        level, reason = found.manager_level, found.why_not_manager
    why = f" ({reason})" if reason and level is not asked else ""
    version = hybrid_blocks.__version__
    return f"hybrid_blocks {version} in vLLM {release}: level {level}{why}; groups: …"


def _cost(asked: Asked, memory: str, *, is_given: bool) -> str:
    """Return how many requests of 8k tokens run at once at each level, or why it is not known."""
    if asked.unplanned is not None:
        return f"not known: {asked.unplanned}"
    command = asked.command
    if not is_given and command.memory_bytes is None:
        # A default refuses no engine: the length is cut to it.
        command = replace(command, fits=True, memory_bytes=parse_memory(memory))
    model, memory_bytes, deployment, _ = case_of_command(command, memory if is_given else None)
    plan = Plan(model, memory_bytes, deployment)
    length = min(_LENGTH, plan.limit)
    at = plan.at(length)
    theirs = plan.vllm_refusal if at.vllm is None else f"{at.vllm.whole:,}"
    return (
        f"in {human(memory_bytes)} {at.natural.whole:,} requests of {length:,} tokens run "
        f"at once at level natural, and {theirs} at the other levels"
    )


def _line(what: str, is_reached: bool, reason: str | None) -> str:
    return f"{what:15}{'yes' if is_reached else f'no: {reason}'}"
