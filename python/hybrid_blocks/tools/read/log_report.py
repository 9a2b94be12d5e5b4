"""What a log tells of an engine, and what the planner makes of the same bytes."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hybrid_blocks.geometry.card import CPU
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.plan.report import Plan, Report, make_report
from hybrid_blocks.tools.plan.report.verdict import typical_lengths
from hybrid_blocks.tools.read.command import of_options
from hybrid_blocks.tools.read.log_figures import (
    Figures,
    compare_figures,
    compare_natural,
    is_natural,
    of_engines,
    tokens_of_blocks,
    tokens_of_requests,
)
from hybrid_blocks.tools.read.log_lines import Logged
from hybrid_blocks.tools.read.log_options import options_of

_COUNTS_REQUESTS: Final = (0, 20, 1, True)
_BATCHES_IN_FLIGHT: Final = (0, 26)
_ASSUMED: Final = "is assumed, as vLLM does"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """An engine at work: the most of each figure, the last share of tokens found, all preemptions.

    Shares are in percent.
    """

    running: int
    waiting: int
    usage: float | None = None
    hits: float | None = None
    preemptions: int = 0


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """A log of an engine's start.

    ``report`` is None where no request of the maximum length fits.
    """

    version: str | None
    model: str
    deployment: Deployment
    figures: Figures
    running: Running | None
    troubles: tuple[tuple[str, str], ...]
    num_lines: int
    num_read: int
    report: Report | None
    refusal: str | None


def report_log(
    log: Logged, source: str | None, given: Mapping[str, Any], memory_bytes: int | None = None
) -> LogReport:
    """Plan what a log tells; ``given`` are fields of the deployment that count before it.

    ``source`` is the model's config or name, ``memory_bytes`` the memory, where the log's own are
    not to be taken.

    Raises:
        PlanError: the log names no model and no memory, or options that cannot be planned.

    """
    if not log.num_lines:
        raise PlanError("the log is empty: give what vLLM writes at its start")
    if not log.num_read:
        raise PlanError(f"none of {log.num_lines:,} lines is one that vLLM logs of a cache")
    version = log.first("version")
    model, deployment = _deployment(log, source, version, given)
    if memory_bytes is not None:
        log = log.with_memory(memory_bytes)
    engines = [
        (number, _figures(of_engine, model, deployment, version))
        for number, of_engine in log.of_engines()
    ]
    figures = of_engines(engines) if engines else _figures(log, model, deployment, version)
    return _report(log, model, deployment, figures)


def _figures(log: Logged, model: Model, deployment: Deployment, version: str | None) -> Figures:
    if is_natural(log):
        return compare_natural(log, model, deployment)
    release = _release(version)
    is_old = release is not None and release < _COUNTS_REQUESTS
    tokens_of = tokens_of_blocks if is_old else tokens_of_requests
    return compare_figures(log, model, deployment, tokens_of)


def _report(log: Logged, model: Model, deployment: Deployment, figures: Figures) -> LogReport:
    report, refusal = None, None
    try:
        lengths = typical_lengths(deployment.length(model))
        report = make_report(Plan(model, figures.memory_bytes, deployment), lengths)
    except PlanError as error:
        refusal = str(error)
    return LogReport(
        version=log.first("version"),
        model=model.name,
        deployment=deployment,
        figures=figures,
        running=_running(log),
        troubles=log.troubles,
        num_lines=log.num_lines,
        num_read=log.num_read,
        report=report,
        refusal=refusal,
    )


def _deployment(
    log: Logged, source: str | None, version: str | None, given: Mapping[str, Any]
) -> tuple[Model, Deployment]:
    options = options_of(log)
    name = options.pop("model", None) or log.first("banner_model")
    if name is None and source is None:
        raise PlanError("the log does not name its model: put the model before --log")
    command = of_options(options, name, {}, source)
    deployment = command.deployment
    release = _release(version)
    if release is not None:
        deployment = msgspec.structs.replace(deployment, release=release[:2])
    if release is not None and release < _BATCHES_IN_FLIGHT:
        deployment = msgspec.structs.replace(deployment, in_flight_batches=1)
    if "device_config=cpu" in (log.last("engine") or ""):
        deployment = msgspec.structs.replace(deployment, card=CPU)
    if (kernel := log.last("gdn_kernel")) is not None:
        backend = "flashinfer" if kernel == "FlashInfer" else "triton"
        deployment = msgspec.structs.replace(deployment, gdn_prefill_backend=backend)
    notes = tuple(note for note in command.model.notes if _ASSUMED not in note)
    model = msgspec.structs.replace(command.model, notes=notes)
    return model, msgspec.structs.replace(deployment, **given)


def _release(version: str | None) -> tuple[int, int, int, bool] | None:
    """Return the numbers of a release, and whether it is one: candidates come before it."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(rc|a|b|\.dev)?", version or "")
    # Builds of a branch call themselves 0.1.
    if match is None or (match[1], match[2]) == ("0", "1"):
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0), match[4] is None


def _running(log: Logged) -> Running | None:
    running = log.numbers("running")
    if not running:
        return None
    hits = log.numbers("hits")
    return Running(
        running=int(max(running)),
        waiting=int(max(log.numbers("waiting"))),
        usage=max(log.numbers("usage")),
        hits=hits[-1] if hits else None,
        preemptions=int(sum(log.numbers("preemptions"))),
    )
