"""One figure of a plan: its formula with its numbers, and its source."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.plan.memory import Estimate
from hybrid_blocks.tools.plan.report.figures import PARTS, PlanReport, rows
from hybrid_blocks.tools.plan.report.report import Plan, make_report
from hybrid_blocks.tools.plan.report.verdict import percent, typical_lengths
from hybrid_blocks.tools.plan.report.why_formulas import (
    CUDA_GRAPHS,
    HOLDS,
    LOGGED,
    REQUESTS,
    formulas,
    group_formula,
    layer_formulas,
)
from hybrid_blocks.tools.plan.sglang import RELEASE
from hybrid_blocks.units import gib, human, parse_tokens

MEMORY: Final = "memory"
LAYERS: Final = "layers"
_GAIN: Final = "gain"
_ESTIMATES: Final = "docs/planner.md, Your cards"
_SIZES: Final = "docs/planner.md, From config.json to bytes"
_FIELDS: Final = {
    "slabs": "num_slabs",
    "block tokens": "block_tokens",
    "blocks": "num_blocks",
    "tokens": "tokens",
    "longest request": "max_length",
    "state slots": "state_slots",
    CUDA_GRAPHS: "cuda_graph_batch",
}
_SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "natural": "docs/planner.md, The natural geometry",
        "vLLM": "vLLM 0.33, vllm/v1/core/kv_cache_planning.py and kv_cache_manager.py",
        "SGLang": f"SGLang {RELEASE}, sglang/srt/mem_cache/kv_cache_configurator.py",
    }
)


def why(
    name: str, plan: Plan, lengths: Sequence[int] = (), *, estimated: Estimate | None = None
) -> list[str]:
    """Lines that explain the figure of a name, as the tables of a plan have it.

    The memory may be ``estimated``.

    Raises:
        PlanError: no figure has this name, or this plan has no such figure.
    """
    asked = _plain(name)
    if asked == MEMORY:
        return _memory(plan, estimated)
    if asked == LAYERS:
        return [*layer_formulas(plan.model, plan.deployment), f"  source: {_SIZES}"]
    if asked.startswith(_GAIN):
        of_length = asked.removeprefix(_GAIN).removeprefix(" of ") or str(plan.limit)
        return _gain(of_length, plan)
    if of_group := list(_group(asked, plan)):
        return of_group
    shown = (*lengths, *typical_lengths(plan.limit), plan.limit)[0]
    name, length = _resolved(name, plan.limit, shown)
    values = _values(plan, name, length)
    if not any(value is not None for value in values.values()):
        raise PlanError(f"--why {name!r}: {plan.model.name} has no such figure")
    title = f"{name} of {length:,}" if name in {HOLDS, *PARTS} else name
    lines = [f"{title}: {_every(name, values)}"]
    for side, formula in formulas(name, plan, length):
        lines += [f"{side}: {formula}", f"  source: {_SOURCES[side]}"]
    most = plan.deployment.max_num_seqs
    if name.startswith(REQUESTS) and any(most <= value for value in values.values() if value):
        lines.append(f"max_num_seqs {most:,} caps it")
    return lines


def _memory(plan: Plan, estimated: Estimate | None) -> list[str]:
    """Lines on the free memory, which all other figures follow from."""
    if estimated is not None:
        return [f"{MEMORY}: {estimated.line}", f"  source: {_ESTIMATES}"]
    return [
        f"{MEMORY}: {gib(plan.memory_bytes)} of each GPU, as given",
        "  source: --memory, or the pasted command's --kv-cache-memory-bytes",
    ]


def _gain(length: str, plan: Plan) -> list[str]:
    """Lines on the column "gain" of a length: those of its requests, and their ratio."""
    name, tokens = _resolved(f"{REQUESTS}{length}", 0, 0)
    report = make_report(plan, [tokens])
    if report.vllm is None:
        raise PlanError(f"--why 'gain': {report.model} is not planned for vLLM")
    index = [one.length for one in report.natural.lengths].index(tokens)
    ours, theirs = (side.lengths[index].whole for side in (report.natural, report.vllm))
    share = percent(report.verdict.gains[index].share)
    lines = why(name, plan)
    return [f"{_GAIN} of {tokens:,}: {ours:,} / {theirs:,} requests - 1 = {share}", *lines]


def _group(asked: str, plan: Plan) -> Iterator[str]:
    """Lines on a row of the tables of groups."""
    report = make_report(plan)
    for side, planned in (("natural", report.natural), ("vLLM", report.vllm)):
        if planned is None:
            continue
        for name, group in rows(planned):
            if asked == _plain(name):
                yield f"{side}: group {name}: {group_formula(planned, group, plan.limit)}"
                yield f"  source: {_SOURCES[side]}"


def _plain(name: str) -> str:
    """Return a name in small letters, whatever stands between its words."""
    return " ".join(re.sub(r"_|(?<=\w)-", " ", name.replace(",", "")).split()).lower()


def _resolved(name: str, limit: int, shown: int) -> tuple[str, int]:
    """Name of a figure as tables have it, and the length that it is of.

    ``shown`` is the length whose bytes the tables show first.
    """
    text = _plain(name)
    if text.startswith(REQUESTS):
        length = parse_tokens(text.removeprefix(REQUESTS))
        return f"{REQUESTS}{length:,}", length
    for start in (HOLDS, *PARTS):
        if text == start or text.startswith(f"{start} of "):
            asked = text.removeprefix(start).removeprefix(" of ")
            return start, parse_tokens(asked) if asked else shown
    if text.startswith(LOGGED.lower()):
        return LOGGED, limit
    known = {_plain(known): known for known in _FIELDS}
    if text in known:
        return known[text], limit
    parts = [known for plain, known in known.items() if f" {text} " in f" {plain} "]
    if len(parts) == 1:
        return parts[0], limit
    raise PlanError(f"--why {name!r}: {_choices(text, known)}")


def _choices(text: str, known: Mapping[str, str]) -> str:
    """Return all names of figures, and the one that is nearest to a text."""
    of_length = [f"{REQUESTS}N", f"{_GAIN} of N", *(f"{part} of N" for part in (HOLDS, *PARTS))]
    every = ", ".join((MEMORY, LAYERS, *_FIELDS, LOGGED, *of_length, "the name of a group"))
    near = get_close_matches(text, (*known, *(HOLDS, *PARTS)), n=1)
    meant = f"; did you mean {known.get(near[0], near[0])!r}?" if near else ""
    return f"figures are {every}{meant}"


def _values(plan: Plan, name: str, length: int) -> dict[str, float | None]:
    """Return a figure on each side; SGLang has some of them."""
    report = make_report(plan, [length])
    values: dict[str, float | None] = {
        side: None if planned is None else _value(planned, name, length)
        for side, planned in (("natural", report.natural), ("vLLM", report.vllm))
    }
    if (of_sglang := _of_sglang(plan, name, length)) is not None:
        values["SGLang"] = of_sglang
    return values


def _value(planned: PlanReport, name: str, length: int) -> float | None:
    if name == LOGGED:
        return planned.logged_concurrency
    if name in _FIELDS:
        value: float | None = getattr(planned, _FIELDS[name])
        return value
    full = next(one for one in planned.lengths if one.length == length)
    if name == HOLDS:
        return full.budget.requests
    return full.budget.parts[name] if name in PARTS else full.running


def _of_sglang(plan: Plan, name: str, length: int) -> float | None:
    if (pools := plan.sglang) is None:
        return None
    if name.startswith(REQUESTS):
        return pools.running(length)
    figures: dict[str, float | None] = {
        "tokens": int(pools.running(length) * length),
        "longest request": min(pools.tokens, length),
        "state slots": pools.state_slots,
    }
    return figures.get(name)


def _every(name: str, values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{_text(name, value)} ({side})" for side, value in values.items())


def _text(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in PARTS:
        return human(int(value))
    return f"{value:,}" if name in _FIELDS or name == HOLDS else f"{value:,.2f}x"
