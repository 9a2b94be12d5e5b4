"""A log's figures next to those that the planner expects of the same memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import permutations
from typing import Any, Final

import msgspec

from hybrid_blocks.geometry import capacity, plan_natural
from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.plan.vllm import VllmPlan, plan_vllm
from hybrid_blocks.tools.read.log_lines import Logged
from hybrid_blocks.units import human

_GIB: Final = 2**30
_HALF_A_DIGIT: Final = 0.005
_MOST_BLOCKS: Final = 2**31
_ROOM: Final = 2**50
_MOST_ORDERED_STAGES: Final = 4
TokensOf = Callable[[VllmPlan], int]

_OTHERS: Final[tuple[tuple[str, Any], ...]] = (
    ("mamba_cache_mode", "none"),
    ("mamba_cache_mode", "align"),
    ("in_flight_batches", 1),
    ("in_flight_batches", 2),
    ("kv_cache_dtype", "fp8"),
    ("kv_cache_dtype", "auto"),
    *(("max_num_batched_tokens", tokens) for tokens in (2048, 4096, 8192, 16384)),
    *(("num_speculative_tokens", tokens) for tokens in range(9)),
    *(("tp", ranks) for ranks in (1, 2, 4, 8)),
    *(("mamba_ssm_dtype", name) for name in ("bfloat16", "float16", "float32")),
    *(("card", card) for card in ("H100-80GB", "A100-80GB")),
    ("release", (0, 30)),
)
"""Options that a log may not tell; one of them may explain its figures."""

_FLAGS: Final = {
    "mamba_ssm_dtype": "--mamba-ssm-cache-dtype {}",
    "in_flight_batches": "--in-flight-batches {} (1 as without --async-scheduling, 2 as with it)",
    "card": "--gpu {}",
    "num_speculative_tokens": "--speculative mtp:{}",
    "release": "a vLLM before 0.31",
}


def tokens_of_requests(plan: VllmPlan) -> int:
    """Return the capacity that vLLM logs since 0.20.1: groups that do not grow count once."""
    return plan.tokens


def tokens_of_blocks(plan: VllmPlan) -> int:
    """Return the capacity that vLLM logged before 0.20.1: as if all groups grew."""
    smallest = min(group.spec.block_tokens for group in plan.groups)
    return plan.num_blocks // len(plan.groups) * smallest


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure; None where the log, or the plan, has none."""

    name: str
    logged: str | None
    planned: str | None

    @property
    def agrees(self) -> bool:
        """Whether the log does not contradict the plan."""
        return None in {self.logged, self.planned} or self.logged == self.planned


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures. ``explanation`` is the option with which the plan would agree, if one does."""

    memory_bytes: int
    is_memory_logged: bool
    figures: tuple[Figure, ...]
    explanation: str | None

    @property
    def agree(self) -> bool:
        """Whether all figures of the log are those of the plan."""
        return all(figure.agrees for figure in self.figures)


def of_engines(engines: Sequence[tuple[int, Figures]]) -> Figures:
    """Return the figures of several engines with parallel data, each by its own memory."""
    explanations = (figures.explanation for _, figures in engines)
    return Figures(
        memory_bytes=min(figures.memory_bytes for _, figures in engines),
        is_memory_logged=all(figures.is_memory_logged for _, figures in engines),
        figures=tuple(
            msgspec.structs.replace(figure, name=f"{figure.name}, engine {number}")
            for number, figures in engines
            for figure in figures.figures
        ),
        explanation=next(filter(None, explanations), None),
    )


def memory_of(log: Logged) -> float | None:
    """GiB of free memory as logged: that of the worker that has least, which all take."""
    for fact in ("memory", "reserved", "in_use"):
        if found := log.numbers(fact):
            return min(found)
    return None


def _gib(log: Logged, plan: VllmPlan) -> float | None:
    """GiB as logged; a start that fails logs what is left beside the null block."""
    gib, usable = memory_of(log), log.numbers("usable")
    if gib is None and usable:
        return min(usable) + plan.block_bytes / _GIB
    return gib


def compare_figures(
    log: Logged, model: Model, deployment: Deployment, tokens_of: TokensOf
) -> Figures:
    """Plan what the log tells, and put both next to each other.

    ``tokens_of`` is how the release counts the tokens that it logs.
    """
    plan = _planned(log, model, deployment, tokens_of)
    figures = tuple(_figures(log, plan, tokens_of))
    agree = all(figure.agrees for figure in figures)
    gib = _gib(log, plan)
    least = plan.num_blocks * plan.block_bytes
    most = least + plan.block_bytes - 1
    return Figures(
        memory_bytes=least if gib is None else min(max(int(gib * _GIB), least), most),
        is_memory_logged=gib is not None,
        figures=figures,
        explanation=None if agree else _explanation(log, model, deployment, tokens_of),
    )


def _planned(log: Logged, model: Model, deployment: Deployment, tokens_of: TokensOf) -> VllmPlan:
    """Return the plan of the fewest blocks that hold the tokens, within the logged memory."""
    probe = plan_vllm(model, _ROOM, deployment)
    plans = [_within(log, probe, blocks, tokens_of) for blocks in _ranges_of_blocks(log, probe)]
    agreeing = (plan for plan in plans if _is_logged(log, plan, tokens_of))
    return next(agreeing, plans[0])


def _ranges_of_blocks(log: Logged, probe: VllmPlan) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks that the logged memory holds: the fewest, as it is written, and the most.

    vLLM takes what the stage with the fewest has. Without the names of their processes, any of the
    logged values may be that of any stage.
    """
    blocks, gib = log.last("blocks"), _gib(log, probe)
    if blocks is not None:
        yield int(blocks), int(blocks), int(blocks)
    elif gib is None and log.last("tokens") is None:
        troubles = "".join(f"; {words}: {advice}" for words, advice in log.troubles)
        raise PlanError(
            "the log does not say how much memory the cache has: paste its line 'Available KV "
            f"cache memory' or 'KV cache size', or give --memory{troubles}"
        )
    elif gib is None:
        yield 1, 1, _MOST_BLOCKS
    else:
        for of_stages in _memory_of_stages(log, len(probe.stage_block_bytes), gib):
            held = list(zip(of_stages, probe.stage_block_bytes, strict=True))
            least, written, most = (
                max(min(int((gib + change) * _GIB) // size for gib, size in held), 1)
                for change in (-_HALF_A_DIGIT, 0, _HALF_A_DIGIT)
            )
            yield least, written, most


def _memory_of_stages(log: Logged, pp: int, least: float) -> Iterator[tuple[float, ...]]:
    named = [log.numbers(f"memory of stage {stage}") for stage in range(pp)]
    if pp > 1 and all(named):
        yield tuple(map(min, named))
    elif 1 < pp == len(log.numbers("memory")) <= _MOST_ORDERED_STAGES:
        yield from permutations(log.numbers("memory"))
    else:
        yield (least,) * pp


def _within(
    log: Logged, probe: VllmPlan, blocks: tuple[int, int, int], tokens_of: TokensOf
) -> VllmPlan:
    least, written, most = blocks
    tokens, longest = log.last("tokens"), log.last("longest")
    if tokens is None and longest is None:
        return _of_blocks(probe, written)
    reach = tokens_of if tokens is not None else VllmPlan.longest
    wanted = int((tokens or longest or "0").replace(",", ""))
    while least < most:
        middle = (least + most) // 2
        enough = reach(_of_blocks(probe, middle)) >= wanted
        least, most = (least, middle) if enough else (middle + 1, most)
    return _of_blocks(probe, least)


def _of_blocks(probe: VllmPlan, num_blocks: int) -> VllmPlan:
    return msgspec.structs.replace(
        probe, num_blocks=num_blocks, memory_bytes=num_blocks * probe.block_bytes
    )


def _figures(log: Logged, plan: VllmPlan, tokens_of: TokensOf) -> Iterator[Figure]:
    length = log.last("length")
    yield Figure(name="max length", logged=length, planned=f"{plan.max_model_len:,}")
    block = log.last("block")
    yield Figure(
        name="attention block", logged=block and f"{int(block):,}", planned=f"{plan.block_tokens:,}"
    )
    blocks = log.last("blocks")
    yield Figure(
        name="blocks", logged=blocks and f"{int(blocks):,}", planned=f"{plan.num_blocks:,}"
    )
    yield Figure(name="tokens", logged=log.last("tokens"), planned=f"{tokens_of(plan):,}")
    concurrency = log.last("concurrency")
    yield Figure(
        name="concurrency",
        logged=concurrency and f"{float(concurrency):.2f}x",
        planned=f"{plan.max_concurrency:.2f}x",
    )
    if (needed := log.last("needed")) is not None:
        blocks_of_one = plan.blocks_per_request(plan.max_model_len)
        yield Figure(
            name="GiB that a request needs",
            logged=f"{float(needed):.2f}",
            planned=f"{blocks_of_one * plan.block_bytes / _GIB:.2f}",
        )
    if (longest := log.last("longest")) is not None:
        yield Figure(
            name="longest that fits", logged=f"{int(longest):,}", planned=f"{plan.longest():,}"
        )
    padding = log.last("padding")
    state = next((group.spec for group in plan.groups if group.spec.kind == "mamba"), None)
    if padding is not None:
        share = state and 100 * (state.page_bytes / state.unpadded_bytes - 1)
        yield Figure(
            name="padding of states",
            logged=f"{float(padding):.2f} %",
            planned="-" if share is None else f"{share:.2f} %",
        )
    if (layers := log.last("padding_layers")) is not None:
        yield Figure(name="padding layers", logged=layers, planned=f"{plan.padding_layers:,}")


def _explanation(
    log: Logged, model: Model, deployment: Deployment, tokens_of: TokensOf
) -> str | None:
    """Return the option that, with another value, makes all figures agree."""
    for option, value in _OTHERS:
        if getattr(deployment, option) == value:
            continue
        with suppress(PlanError):
            other = msgspec.structs.replace(deployment, **{option: value})
            if _agree(log, model, other, tokens_of):
                return _FLAGS.get(option, f"--{option.replace('_', '-')} {{}}").format(value)
    for count, release in _COUNTS.items():
        if count is not tokens_of and _agree(log, model, deployment, count):
            return f"what vLLM {release} logs"
    return None


def _agree(log: Logged, model: Model, deployment: Deployment, tokens_of: TokensOf) -> bool:
    return _is_logged(log, _planned(log, model, deployment, tokens_of), tokens_of)


def _is_logged(log: Logged, plan: VllmPlan, tokens_of: TokensOf) -> bool:
    return all(figure.agrees for figure in _figures(log, plan, tokens_of))


_COUNTS: Final = {tokens_of_blocks: "before 0.20.1", tokens_of_requests: "since 0.20.1"}


# Figures that level natural logs.


def is_natural(log: Logged) -> bool:
    """Return whether the engine ran at level ``natural``."""
    return log.last("slabs") is not None


def compare_natural(log: Logged, model: Model, deployment: Deployment) -> Figures:
    """Plan the logged slabs, within the logged memory, and put both next to each other."""
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
        figures=tuple(_natural_figures(log, plan, vllm, deployment.length(model))),
        explanation=None,
    )


def _natural_figures(
    log: Logged, plan: ArenaPlan, vllm: VllmPlan | None, length: int
) -> Iterator[Figure]:
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
