"""The options and figures of a log, and the plan of the same bytes."""

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from hybrid_blocks.geometry import capacity, plan_natural
from hybrid_blocks.geometry.card import CPU
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.plan.report import Plan, Report, make_report
from hybrid_blocks.tools.plan.report.verdict import typical_lengths
from hybrid_blocks.tools.plan.vllm import VllmPlan, plan_vllm
from hybrid_blocks.tools.read.command import of_options
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


_BATCHES_IN_FLIGHT: Final = (0, 26)
"""The release since which vLLM schedules asynchronously unless an option forbids it."""
_ASSUMED: Final = "is assumed, as vLLM does"
_GIB: Final = 2**30
_HALF_A_DIGIT: Final = 0.005
_MOST_BLOCKS: Final = 2**31
_ROOM: Final = 2**50

_OTHERS: Final[tuple[tuple[str, Any], ...]] = (
    *(("mamba_cache_mode", mode) for mode in ("none", "align")),
    *(("in_flight_batches", batches) for batches in (1, 2)),
    *(("kv_cache_dtype", name) for name in ("fp8", "auto")),
    *(("max_num_batched_tokens", tokens) for tokens in (2048, 4096, 8192, 16384)),
    *(("num_speculative_tokens", tokens) for tokens in range(9)),
    *(("tp", ranks) for ranks in (1, 2, 4, 8)),
    *(("mamba_ssm_dtype", name) for name in ("bfloat16", "float16", "float32")),
    *(("card", card) for card in ("H100-80GB", "A100-80GB")),
)
"""Options that a log may not tell; one of them may explain its figures."""
_FLAGS: Final = {
    "card": "--gpu {}",
    "mamba_ssm_dtype": "--mamba-ssm-cache-dtype {}",
    "num_speculative_tokens": "--speculative mtp:{}",
}


class Figure(msgspec.Struct, frozen=True):
    """One figure; ``logged`` is None where the log has none."""

    name: str
    logged: str | None
    planned: str

    @property
    def agrees(self) -> bool:
        """Whether the log does not contradict the plan."""
        return self.logged in {None, self.planned}


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """A log of an engine's start, and the plan of the same bytes.

    ``explanation`` is the option with which the plan would agree, if one does. ``report`` is None
    where no request of the maximum length fits; ``refusal`` says so.
    """

    version: str | None
    model: str
    deployment: Deployment
    memory_bytes: int
    is_memory_logged: bool
    figures: tuple[Figure, ...]
    explanation: str | None
    num_lines: int
    num_read: int
    report: Report | None
    refusal: str | None

    @property
    def agree(self) -> bool:
        """Whether all figures of the log are those of the plan."""
        return all(figure.agrees for figure in self.figures)


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
    if memory_bytes is not None:
        facts = log.facts | {"memory": [str(memory_bytes / _GIB)]}
        log = msgspec.structs.replace(log, facts=facts)
    model, deployment = _deployment(log, source, given)
    compare = _compare_natural if log.last("slabs") is not None else _compare
    memory, figures, explanation = compare(log, model, deployment)
    report, refusal = None, None
    try:
        lengths = typical_lengths(deployment.length(model))
        report = make_report(Plan(model, memory, deployment), lengths)
    except PlanError as error:
        refusal = str(error)
    return LogReport(
        version=log.last("version"),
        model=model.name,
        deployment=deployment,
        memory_bytes=memory,
        is_memory_logged=bool(log.numbers("memory") or log.numbers("usable")),
        figures=figures,
        explanation=explanation,
        num_lines=log.num_lines,
        num_read=log.num_read,
        report=report,
        refusal=refusal,
    )


def _deployment(
    log: Logged, source: str | None, given: Mapping[str, Any]
) -> tuple[Model, Deployment]:
    options = options_of(log)
    name = options.pop("model", None) or log.last("banner_model")
    if name is None and source is None:
        raise PlanError("the log does not name its model: put the model before --log")
    command = of_options(options, name, {}, source)
    changed: dict[str, Any] = {}
    if match := re.match(r"(\d{1,6})\.(\d{1,6})", log.last("version") or ""):
        release = int(match[1]), int(match[2])
        # Builds of a branch call themselves 0.1.
        if release != (0, 1):
            changed["release"] = release
            if release < _BATCHES_IN_FLIGHT:
                changed["in_flight_batches"] = 1
    if "device_config=cpu" in (log.last("engine") or ""):
        changed["card"] = CPU
    if (kernel := log.last("gdn_kernel")) is not None:
        changed["gdn_prefill_backend"] = "flashinfer" if kernel == "FlashInfer" else "triton"
    notes = tuple(note for note in command.model.notes if _ASSUMED not in note)
    model = msgspec.structs.replace(command.model, notes=notes)
    return model, msgspec.structs.replace(command.deployment, **{**changed, **given})


Compared = tuple[int, tuple[Figure, ...], str | None]
"""Bytes of the cache, figures of the log next to the planned ones, and what explains them."""


def _compare(log: Logged, model: Model, deployment: Deployment) -> Compared:
    """Plan the pool that the log tells."""
    plan = _planned(log, model, deployment)
    figures = tuple(_figures(log, plan))
    gib, least = _gib(log, plan), plan.num_blocks * plan.block_bytes
    memory = least
    if gib is not None:
        memory = min(max(int(gib * _GIB), least), least + plan.block_bytes - 1)
    agree = all(figure.agrees for figure in figures)
    return memory, figures, None if agree else _explanation(log, model, deployment)


def _gib(log: Logged, plan: VllmPlan) -> float | None:
    """GiB of the worker that has least, which all take.

    A start that fails logs what is left beside the null block.
    """
    usable = (gib + plan.block_bytes / _GIB for gib in log.numbers("usable"))
    return min(log.numbers("memory") or usable, default=None)


def _planned(log: Logged, model: Model, deployment: Deployment) -> VllmPlan:
    """Return the plan of the fewest blocks that hold the tokens, within the logged memory."""
    probe = plan_vllm(model, _ROOM, deployment)
    least, written, most = _num_blocks(log, probe)
    tokens, longest = log.last("tokens"), log.last("longest")
    if tokens is None and longest is None:
        return _of_blocks(probe, written)
    wanted = int((tokens or longest or "0").replace(",", ""))
    while least < most:
        middle = (least + most) // 2
        plan = _of_blocks(probe, middle)
        enough = (plan.longest() if tokens is None else plan.tokens) >= wanted
        least, most = (least, middle) if enough else (middle + 1, most)
    return _of_blocks(probe, least)


def _num_blocks(log: Logged, probe: VllmPlan) -> tuple[int, int, int]:
    """Return the blocks that the logged memory holds: the fewest, as it is written, and the most.

    A log names no memory by its pipeline stage; the tokens decide for several stages.
    """
    blocks, gib = log.last("blocks"), _gib(log, probe)
    if blocks is not None:
        return int(blocks), int(blocks), int(blocks)
    if gib is None and log.last("tokens") is None:
        raise PlanError(
            "the log does not say how much memory the cache has: paste its line 'Available KV "
            "cache memory' or 'KV cache size', or give --memory"
        )
    is_uneven = len(probe.stage_block_bytes) > 1 and log.last("tokens") is not None
    if gib is None or is_uneven:
        return 1, 1, _MOST_BLOCKS
    least, written, most = (
        max(int((gib + change) * _GIB) // probe.block_bytes, 1)
        for change in (-_HALF_A_DIGIT, 0, _HALF_A_DIGIT)
    )
    return least, written, most


def _of_blocks(probe: VllmPlan, num_blocks: int) -> VllmPlan:
    return msgspec.structs.replace(
        probe, num_blocks=num_blocks, memory_bytes=num_blocks * probe.block_bytes
    )


def _figures(log: Logged, plan: VllmPlan) -> Iterator[Figure]:
    needed = plan.blocks_per_request(plan.max_model_len) * plan.block_bytes / _GIB
    for name, fact, planned, form in (
        ("max length", "length", plan.max_model_len, "{:,.0f}"),
        ("attention block", "block", plan.block_tokens, "{:,.0f}"),
        ("blocks", "blocks", plan.num_blocks, "{:,.0f}"),
        ("tokens", "tokens", plan.tokens, "{:,.0f}"),
        ("concurrency", "concurrency", plan.max_concurrency, "{:.2f}x"),
        ("GiB that a request needs", "needed", needed, "{:.2f}"),
        ("longest that fits", "longest", plan.longest(), "{:,.0f}"),
    ):
        logged = log.numbers(fact)
        if logged or fact not in {"needed", "longest"}:
            text = form.format(logged[-1]) if logged else None
            yield Figure(name, text, form.format(planned))


def _explanation(log: Logged, model: Model, deployment: Deployment) -> str | None:
    """Return the option that, with another value, makes all figures agree."""
    for option, value in _OTHERS:
        if getattr(deployment, option) == value:
            continue
        with suppress(PlanError):
            other = msgspec.structs.replace(deployment, **{option: value})
            if all(figure.agrees for figure in _figures(log, _planned(log, model, other))):
                flag = _FLAGS.get(option, f"--{option.replace('_', '-')} {{}}")
                return flag.format(value)
    return None


def _compare_natural(log: Logged, model: Model, deployment: Deployment) -> Compared:
    """Plan the slabs that level ``natural`` logs, within the logged memory."""
    slab = plan_natural(model, _ROOM, deployment).slab_bytes
    least = int((log.last("slabs") or "0").replace(",", "")) * slab
    gib, length = min(log.numbers("memory"), default=least / _GIB), deployment.length(model)
    memory = min(max(int(gib * _GIB), least), least + slab - 1)
    plan = plan_natural(model, memory, deployment)
    figures = (
        Figure("max length", log.last("length"), f"{length:,}"),
        Figure("slabs", log.last("slabs"), f"{plan.num_slabs:,}"),
        Figure("tokens", log.last("tokens"), f"{capacity.tokens(plan, length):,}"),
        Figure("concurrency", log.last("concurrency"), f"{capacity.concurrency(plan, length):.2f}"),
    )
    return memory, figures, None
