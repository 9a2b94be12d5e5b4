"""The options and figures of a log, and the plan of the same bytes."""

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from hybrid_blocks.geometry.card import CPU
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.plan.memory import parse_cards
from hybrid_blocks.tools.plan.report import Plan, Report, make_report
from hybrid_blocks.tools.plan.report.verdict import typical_lengths
from hybrid_blocks.tools.read.command import OF_BATCH, of_options
from hybrid_blocks.tools.read.log_figures import (
    Figures,
    compare_figures,
    compare_natural,
    is_natural,
    memory_of,
    of_engines,
    tokens_of_blocks,
    tokens_of_requests,
)
from hybrid_blocks.tools.read.log_lines import Logged
from hybrid_blocks.tools.read.options import Option, recorded

_KEY: Final = re.compile(r"'(\w+)': ")
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"")
_MOST_DIGITS: Final = 20
_ENGINE: Final = {
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
}
_CLOSING: Final = {"{": "}", "[": "]", "(": ")"}


def options_of(log: Logged) -> dict[str, Any]:
    """Options that the log tells, resolved ones before those that were given."""
    options = dict(_given(log.last("arguments") or "{}"))
    for model in ("model_tag", "model"):
        options.setdefault("model", options.pop(model, None))
    options |= dict(_resolved(log.last("engine") or ""))
    if (tokens := log.last("batched_tokens")) is not None:
        options["max_num_batched_tokens"] = int(tokens)
    if (asynchronous := log.last("asynchronous")) is not None:
        options["async_scheduling"] = asynchronous == "enabled"
    if (fitted := log.last("fitted") or log.last("length")) is not None:
        options["max_model_len"] = int(fitted.replace(",", ""))
    if log.last("mode") == "none":
        options["enable_prefix_caching"] = False
    # The memory is the log's own, and names of other releases are not options of this one.
    left_out = {"kv_cache_memory_bytes", "num_gpu_blocks_override", "hf_config_path", "config"}
    known = recorded().named()
    return {
        name: value
        for name, value in options.items()
        if name in known.keys() - left_out and _is_of(known[name], value)
    }


def _is_of(option: Option, value: object) -> bool:
    """Return whether a value is one that vLLM's parser gives for an option."""
    if option.takes == "many":
        return isinstance(value, list)
    if option.takes == "nothing":
        return isinstance(value, bool)
    if option.choices and value not in option.choices:
        return False
    types = {"object": dict | str, "number": int | float, "text": str}.get(option.kind, int)
    return isinstance(value, types) and not isinstance(value, bool)


def _given(text: str) -> Iterator[tuple[str, Any]]:
    """Entries of the dictionary of non-default arguments, as far as they are plain values."""
    place = 1
    while match := _KEY.search(text, place):
        start = match.end()
        end = _end_of_value(text, start)
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            yield match[1], ast.literal_eval(text[start:end])
        place = max(end, start)


def _end_of_value(text: str, start: int) -> int:
    """Index behind a value: of its closing bracket, or of the comma that follows it."""
    depth, index = 0, start
    while index < len(text):
        if text[index] in "'\"":
            quoted = _QUOTED.match(text, index)
            if quoted is None:
                return len(text)
            index = quoted.end()
            continue
        if text[index] in _CLOSING:
            depth += 1
        elif text[index] in _CLOSING.values():
            if depth == 0:
                return index
            depth -= 1
        elif text[index] == "," and depth == 0:
            return index
        index += 1
    return index


def _resolved(text: str) -> Iterator[tuple[str, Any]]:
    """Fields of the engine's configuration."""
    if match := re.match(r"model='([^']+)'", text):
        yield "model", match[1]
    for field, option in _ENGINE.items():
        if match := re.search(rf"\b{field}=([^,]+)", text):
            yield option, _plain(match[1])
    if match := re.search(
        r"speculative_config=SpeculativeConfig\(method='?(\w+)'?, model=(?:'([^']*)'|None), "
        r"num_spec_tokens=(\d+)",
        text,
    ):
        config = {"method": match[1], "num_speculative_tokens": int(match[3])}
        yield "speculative_config", config if match[2] is None else {**config, "model": match[2]}


def _plain(text: str) -> Any:
    text = text.strip().strip("'").removeprefix("torch.")
    named = {"True": True, "False": False, "None": None}
    if text in named:
        return named[text]
    return int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else text


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

    ``report`` is None where no request of the maximum length fits. ``logged_bytes`` are the log's
    own memory, where another is given.
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
    logged_bytes: int | None = None


def report_log(
    log: Logged, source: str | None, given: Mapping[str, Any], memory_bytes: int | None = None
) -> LogReport:
    """Plan what a log tells; ``given`` are fields of the deployment that count before it.

    ``source`` is the model's config or name, ``memory_bytes`` the memory, where the log's own are
    not to be taken.
    """
    if not log.num_lines:
        raise PlanError("the log is empty: give what vLLM writes at its start")
    if not log.num_read:
        raise PlanError(f"none of {log.num_lines:,} lines is one that vLLM logs of a cache")
    version = log.first("version")
    model, deployment = _deployment(log, source, version, given)
    logged = None
    if memory_bytes is not None:
        logged = memory_of(log)
        log = log.with_memory(memory_bytes)
    engines = [
        (number, _figures(of_engine, model, deployment, version))
        for number, of_engine in log.of_engines()
    ]
    figures = of_engines(engines) if engines else _figures(log, model, deployment, version)
    report = _report(log, model, deployment, figures)
    logged_bytes = None if logged is None else int(logged * 2**30)
    return msgspec.structs.replace(report, logged_bytes=logged_bytes)


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
    options |= {name: given[name] for name in OF_BATCH if name in given}
    cards = parse_cards(given["card"]) if given.get("card") else None
    command = of_options(options, name, {}, source, cards)
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
    model = command.model
    if deployment.card == CPU:
        notes = tuple(note for note in model.notes if _ASSUMED not in note)
        model = msgspec.structs.replace(model, notes=notes)
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
