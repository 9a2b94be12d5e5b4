"""One figure of a plan: its formula with its numbers, its source, and what would change it most."""

import math
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.geometry import plan_natural
from hybrid_blocks.plan.memory import Gpu
from hybrid_blocks.plan.report import groups, why_sglang
from hybrid_blocks.plan.report.plan_report import PlanReport
from hybrid_blocks.plan.report.report import Report, make_report
from hybrid_blocks.plan.report.sglang_report import RELEASE
from hybrid_blocks.plan.report.verdict import percent, typical_lengths
from hybrid_blocks.plan.report.why_formulas import HOLDS, PARTS, formulas, layer_formulas
from hybrid_blocks.plan.vllm import plan_vllm
from hybrid_blocks.units import gib, human, parse_tokens

REQUESTS: Final = "requests of "
MEMORY: Final = "memory"
LAYERS: Final = "layers"
_GAIN: Final = "gain"
_ESTIMATES: Final = "docs/planner.md, Your cards"
_SIZES: Final = "docs/planner.md, From config.json to bytes"
_LOGGED: Final = "vLLM logs"
_FIELDS: Final = {
    "slabs": "num_slabs",
    "block tokens": "block_tokens",
    "blocks": "num_blocks",
    "tokens": "tokens",
    "longest request": "max_length",
    "state slots": "state_slots",
    "max_num_seqs for CUDA graphs": "cuda_graph_batch",
}
_SOURCES: Final = {
    "natural": "docs/planner.md, The natural geometry",
    "vLLM": "vLLM 0.33, vllm/v1/core/kv_cache_planning.py and kv_cache_manager.py",
    "SGLang": f"SGLang {RELEASE}, sglang/srt/mem_cache/kv_cache_configurator.py",
}


def why(
    name: str,
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    lengths: Sequence[int] = (),
    *,
    gpu: Gpu | None = None,
) -> list[str]:
    """Lines that explain the figure of a name, as the tables of a plan have it.

    Where ``gpu`` gives the memory, another deployment finds another memory.

    Raises:
        PlanError: no figure has this name, or this plan has no such figure; or as `make_report`.

    """
    case = (model, memory_bytes, deployment)
    asked = _plain(name)
    if asked == MEMORY:
        return _memory(case, gpu)
    if asked == LAYERS:
        return [*layer_formulas(model, deployment), f"  source: {_SIZES}"]
    limit = deployment.length(model)
    if asked.startswith(_GAIN):
        return _gain(asked.removeprefix(_GAIN).removeprefix(" of ") or str(limit), case, gpu)
    if of_group := list(_group(asked, make_report(*case, [limit]), limit)):
        return of_group
    name, length = _resolved(name, limit, (*lengths, *typical_lengths(limit), limit)[0])
    wanted = [*lengths, length]
    report = make_report(model, memory_bytes, deployment, wanted)
    values = _values(report, case, name, length)
    if not any(value is not None for value in values.values()):
        raise PlanError(f"--why {name!r}: {model.name} has no such figure")
    geometry = plan_natural(model, memory_bytes, deployment)
    plan = None if report.vllm is None else plan_vllm(model, memory_bytes, deployment)
    shown = f"{name} of {length:,}" if name in {HOLDS, *PARTS} else name
    lines = [f"{shown}: {_both(name, values)}"]
    for side, formula in formulas(name, geometry, plan, length):
        if values.get(side) is None:
            continue  # a figure of SGLang alone, whose name begins as one of theirs
        lines.append(f"{side}: {formula}")
        lines.append(f"  source: {_SOURCES[side]}")
    if (of_sglang := why_sglang.formula(name, *case, length)) is not None:
        lines += [f"SGLang: {of_sglang}", f"  source: {_SOURCES['SGLang']}"]
    if name.startswith(REQUESTS) and any(
        deployment.max_num_seqs <= value for value in values.values() if value is not None
    ):
        lines.append(f"max_num_seqs {deployment.max_num_seqs:,} caps it")
    lines.append(_changed_most(name, length, values, case, gpu))
    return lines


def _memory(case: tuple[Model, int, Deployment], gpu: Gpu | None) -> list[str]:
    """Lines on the free memory, which all other figures follow from."""
    model, memory_bytes, deployment = case
    if gpu is None:
        return [
            f"{MEMORY}: {gib(memory_bytes)} of each GPU, as given",
            "  source: --memory, or the pasted command's --kv-cache-memory-bytes",
        ]
    lines = [f"{MEMORY}: {gpu.estimate(model, deployment).line}", f"  source: {_ESTIMATES}"]
    most, told = 0.0, "no single input of those tried changes it"
    for text, memory, other in _changes(*case):
        if memory != memory_bytes:
            continue
        try:
            found = gpu.free(model, other)
        except PlanError:
            continue
        if _moved(memory_bytes, found) > most:
            most = _moved(memory_bytes, found)
            by = gpu.option(other) if other.tp != deployment.tp else text
            told = f"changed most by {by}: {gib(found)}"
    return [*lines, told]


def _gain(length: str, case: tuple[Model, int, Deployment], gpu: Gpu | None) -> list[str]:
    """Lines on the column "gain" of a length: those of its requests, and their ratio."""
    name, tokens = _resolved(f"{REQUESTS}{length}", 0, 0)
    report = make_report(*case, [tokens])
    lines = why(name, *case, gpu=gpu)
    if report.vllm is None or report.verdict is None:
        raise PlanError(f"--why 'gain': {report.model} is not planned for vLLM")
    index = [one.length for one in report.natural.lengths].index(tokens)
    ours, theirs = (plan.lengths[index].running for plan in (report.natural, report.vllm))
    share = percent(report.verdict.gains[index].share)
    return [f"{_GAIN} of {tokens:,}: {ours:,.2f} / {theirs:,.2f} requests - 1 = {share}", *lines]


def _group(asked: str, report: Report, length: int) -> Iterator[str]:
    """Lines on a row of the tables of groups."""
    for side, plan in (("natural", report.natural), ("vLLM", report.vllm)):
        if plan is None:
            continue
        for name, group in groups.rows(plan):
            if asked == _plain(name):
                yield f"{side}: group {name}: {groups.formula(plan, group, length)}"
                yield f"  source: {_SOURCES[side]}"


def _plain(name: str) -> str:
    """Return a name in small letters, whatever stands between its words."""
    return " ".join(re.sub(r"_|(?<=\w)-", " ", name.replace(",", "")).split()).lower()


def _at_length(text: str, limit: int, shown: int) -> tuple[str, int] | None:
    """Return the name of a figure of one length, and that length; None of another figure."""
    if text.startswith(REQUESTS):
        # As SGLang's table has it, with its ratio.
        length = parse_tokens(text.removeprefix(REQUESTS).split(" ratio ")[0])
        return f"{REQUESTS}{length:,}", length
    for start in (HOLDS, *PARTS):
        if text == start or text.startswith(f"{start} of "):
            asked = text.removeprefix(start).removeprefix(" of ")
            return start, parse_tokens(asked) if asked else shown
    for start in why_sglang.AT_LENGTH:
        if text == start.removesuffix(" for ") or text.startswith(start):
            asked = text.removeprefix(start.removesuffix(" for ")).removeprefix(" for ")
            length = parse_tokens(asked) if asked else limit
            return f"{start}{length:,}", length
    return None


def _resolved(name: str, limit: int, shown: int) -> tuple[str, int]:
    """Name of a figure as tables have it, and the length that it is of.

    ``shown`` is the length whose bytes the tables show first.
    """
    text = _plain(name)
    if (at_length := _at_length(text, limit, shown)) is not None:
        return at_length
    if text.startswith(_LOGGED.lower()):
        return _LOGGED, limit
    known = {_plain(known): known for known in (*_FIELDS, *why_sglang.NAMES)}
    if text in known:
        return known[text], limit
    parts = [known for plain, known in known.items() if f" {text} " in f" {plain} "]
    if len(parts) == 1:
        return parts[0], limit
    near = get_close_matches(text, (*known, *(HOLDS, *PARTS)), n=1)
    meant = f"; did you mean {known.get(near[0], near[0])!r}?" if near else ""
    every = ", ".join(
        (
            *(
                MEMORY,
                LAYERS,
                *_FIELDS,
                f"{REQUESTS}N",
                f"{_GAIN} of N",
                _LOGGED,
                *(f"{part} of N" for part in (HOLDS, *PARTS)),
                *why_sglang.NAMES,
            ),
            *(f"{start}N" for start in why_sglang.AT_LENGTH),
            "the name of a group",
        )
    )
    raise PlanError(f"--why {name!r}: figures are {every}{meant}")


def _values(
    report: Report, case: tuple[Model, int, Deployment], name: str, length: int
) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    if name not in why_sglang.NAMES and not name.startswith(why_sglang.AT_LENGTH):
        plans = {"natural": report.natural, "vLLM": report.vllm}
        values = {
            side: None if plan is None else _value(plan, name, length)
            for side, plan in plans.items()
        }
    if (of_sglang := why_sglang.figure(name, *case, length)) is not None:
        values["SGLang"] = of_sglang
    return values


def _value(plan: PlanReport, name: str, length: int) -> float | None:
    if name == _LOGGED:
        return plan.logged_concurrency
    if name in _FIELDS:
        value: float | None = getattr(plan, _FIELDS[name])
        return value
    full = next(one for one in plan.lengths if one.length == length)
    if name == HOLDS:
        return full.budget.requests
    return full.budget.parts[name] if name in PARTS else full.running


def _both(name: str, values: dict[str, float | None]) -> str:
    return ", ".join(f"{_text(name, value)} ({side})" for side, value in values.items())


def _text(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in PARTS or name.startswith(why_sglang.BYTES):
        return human(int(value))
    if name.startswith(why_sglang.BEST):
        return f"{value:g}"
    is_count = name in _FIELDS or name in why_sglang.NAMES or name == HOLDS
    return f"{value:,}" if is_count else f"{value:,.2f}x"


def _changed_most(
    name: str,
    length: int,
    values: dict[str, float | None],
    case: tuple[Model, int, Deployment],
    gpu: Gpu | None,
) -> str:
    """Return the input whose change, one at a time, moves the figure most."""
    most, told = 0.0, "no single input of those tried changes it"
    for text, memory, other in _changes(*case):
        if gpu is not None and memory != case[1]:
            continue
        try:
            changed = (case[0], memory if gpu is None else gpu.free(case[0], other), other)
            found = _values(make_report(*changed, [length]), changed, name, length)
        except PlanError:
            continue
        moved = max(_moved(values[side], found.get(side)) for side in values)
        if moved > most:
            most = moved
            by = gpu.option(other) if gpu and other.tp != case[2].tp else text
            told = f"changed most by {by}: {_both(name, found)}"
    return told


def _moved(before: float | None, after: float | None) -> float:
    if not before or not after:
        return 0.0
    return abs(math.log(after / before))


def _changes(
    model: Model, memory_bytes: int, deployment: Deployment
) -> Iterator[tuple[str, int, Deployment]]:
    """Inputs with another value that a person might give; a memory of a quarter more first."""
    yield "a quarter more --memory", memory_bytes * 5 // 4, deployment
    is_small = deployment.kv_cache_dtype.startswith("fp8")
    has_states = any(layer.cache.kind == "state" for layer in model.layers)
    changed: dict[str, object] = {
        "kv_cache_dtype": "auto" if is_small else "fp8",
        "tp": deployment.tp * 2,
        "max_model_len": max(deployment.length(model) // 2, 1),
        "max_num_batched_tokens": max(deployment.max_num_batched_tokens // 2, 1),
        "max_num_seqs": deployment.max_num_seqs * 2,
    }
    if deployment.num_speculative_tokens:
        changed["num_speculative_tokens"] = 0
    if has_states:
        changed["mamba_ssm_dtype"] = "bf16"
        is_cached = deployment.mamba_cache_mode == "align"
        changed["mamba_cache_mode"] = "none" if is_cached else "align"
    for option, value in changed.items():
        if getattr(deployment, option) != value:
            other = msgspec.structs.replace(deployment, **{option: value})
            yield f"--{option.replace('_', '-')} {value}", memory_bytes, other
