"""Time to the first token, in the virtual time of a card.

A step takes the time of kernels that were measured on that card, or an estimate from the model's
shape. Each cell is a model, a load, a number of requests at a time and a memory. A cell runs at
level ``natural``, which leaves states inside chunks of prompts, and with each of stock vLLM's
settings. Cells of one model and load differ in memory and requests at a time, in turns. In a turn
of their own requests draft, by the model's head or by n-grams; the drafter's own time is left out,
which both sides spend alike.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np
from _record import Row
from _served_hits import serve
from _served_model import Case, Side, serving
from _served_rows import GIB, Cases, Chosen, deployment, read
from hits import MOONCAKE
from hybrid_blocks.geometry.step_time import StepTime, step_time
from hybrid_blocks.model import Model, load_model
from hybrid_blocks.tools.plan import plan_natural, plan_vllm
from hybrid_blocks.tools.replay.cache import SharedCache, plan_cache, share_text
from hybrid_blocks.tools.trace import Trace
from loads import generate
from msgspec.structs import replace
from natural.served import Served
from vllm.v1.core.sched.output import SchedulerOutput

MODELS = (
    *("Qwen3.5-27B", "Qwen3.5-35B-A3B", "Nemotron-H-8B"),
    *("Granite-4.0-H-Small", "Kimi-Linear-48B-A3B"),
)
LOADS: dict[str, str | None] = {
    **dict.fromkeys(("conversations", "agents", "tools", "documents", "seats", "code")),
    "short chats": "llmservingsim_sharegpt_qwen3_300.jsonl.gz",
    "Mooncake": MOONCAKE,
    "coding agents": "claude_code_agentic_dev.jsonl.gz",
}
"""The file of a recorded load; None where a workload is generated."""
RUNNING = {2: 60, 8: 120, 16: 160, 64: 256}
"""Requests at a time, each with the number of requests in all."""
SHARES = (0.05, 0.10, 0.20, 0.50, 1.0)
"""Memories, as shares of what holds everything."""
CELLS = 2
"""Cells of a model and load; 20 are all pairs of `RUNNING` and `SHARES`."""
DRAFTED = 2
"""The turn of the cells whose requests draft, one of a model and load."""
HEAD_DRAFTS, NGRAM_DRAFTS = 2, 4
"""Drafts of a step."""
ROOM = 2
"""Requests of the longest length that fit into the least memory, in which vLLM starts."""


def cases(chosen: Chosen) -> Cases:
    """Yield level ``natural`` and each of stock vLLM's settings, for every cell."""
    models, loads = chosen.models or MODELS, chosen.loads or tuple(LOADS)
    turns = [*((turn, False) for turn in range(chosen.cells or CELLS)), (DRAFTED, True)]
    for (turn, drafted), (load_at, load), (model_at, name) in product(
        turns, enumerate(loads), enumerate(models)
    ):
        running = tuple(RUNNING)[(load_at + model_at + turn) % len(RUNNING)]
        share = SHARES[(load_at + 2 * model_at + 3 * turn) % len(SHARES)]
        drafts = (HEAD_DRAFTS if load_model(name).draft_layers else NGRAM_DRAFTS) if drafted else 0
        for side in chosen.sides:
            yield from of_cell(load, name, running, share, chosen.data, side, drafts)


def of_cell(  # noqa: PLR0917 - the parts of a cell's name
    load: str, name: str, running: int, share: float, data: Path, side: Side, drafts: int = 0
) -> Cases:
    """Yield one side of a cell: stock vLLM with each of its settings."""
    model = load_model(name)
    trace = load_of(load, RUNNING[running], data)
    longest = int(trace.total_tokens.max()) + 1
    deployed = replace(deployment(longest), num_speculative_tokens=drafts)
    plan = plan_natural(model, 64 * GIB, deployed)
    least = ROOM * plan.slabs(1, longest) * plan.slab_bytes
    memory = max(int(share * everything(model, load, RUNNING[running], data)), least)
    while not plan_vllm(model, memory, deployed).starts:
        memory += memory // 16
    case = Case(model, memory, deployed, running, inside=True, fast=True)
    time = step_time(model, case.deployment)
    assert time is not None
    about = {"load": load, "model": model.name, "running": running, "share": share_text(share)}
    about |= {"gib": round(case.memory_bytes / GIB, 2), "side": side, "requests": len(trace)}
    about |= {"card": case.deployment.card, "source": time.source}
    about["clock"] = hashlib.sha256(repr(time).encode()).hexdigest()[:8]
    for setting in case.settings() if side is Side.STOCK else (case,):
        key = about | {"unit": setting.match_unit, "retention": setting.retention}
        if drafts:
            key |= {"drafts": f"{setting.drafter}:{drafts}", "junctions": setting.junctions}
        yield key, partial(measure, side, setting, trace, time)


@cache
def everything(model: Model, load: str, limit: int, data: Path) -> int:
    """Return the bytes of a cache from which nothing is evicted."""
    trace = load_of(load, limit, data)
    deployed = deployment(int(trace.total_tokens.max()) + 1)
    return SharedCache(trace, plan_cache(model, 1024 * GIB, deployed)).unbounded_bytes


@cache
def load_of(load: str, limit: int, data: Path) -> Trace:
    file = LOADS[load]
    return generate(load, num_requests=limit) if file is None else read(data, file, limit)


@dataclass
class Watch:
    """Counts a step's work before it gets its outputs, and lets its time pass."""

    served: Served
    time: StepTime
    now: float = 0.0
    steps: int = 0
    chunks: int = 0
    preemptions: int = 0
    added: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)

    def add(self, id_: str) -> None:
        """Note when a request came."""
        self.added[id_] = self.now

    def see(self, scheduled: SchedulerOutput) -> None:
        """Let a step's time pass."""
        prompt = decodes = drafts = context = chunks = 0
        pairs = 0.0
        ended = []
        for id_, count in scheduled.num_scheduled_tokens.items():
            request = self.served.scheduler.requests[id_]
            start = request.num_computed_tokens - count
            if start + 1 < request.num_tokens:
                prompt += count
                pairs += count * (start + count / 2)
                chunks += 1
            else:
                decodes += 1
                drafts += count - 1
                context += start
            if id_ not in self.first and request.num_computed_tokens >= request.num_tokens:
                ended.append(id_)
        if prompt + decodes:
            self.now += self.time.milliseconds(prompt, decodes, context, pairs, drafts)
            self.steps += 1
        self.chunks += chunks
        self.preemptions += len(scheduled.preempted_req_ids or ())
        self.first |= dict.fromkeys(ended, self.now)


def measure(side: Side, case: Case, trace: Trace, time: StepTime) -> Row:
    """Serve a trace, a fixed number of requests at a time."""
    with serving(side, case) as served:
        watch = Watch(served, time)
        serve(served, trace, case.num_requests, watch.see, watch.add)
        found = sum(served.num_hit_tokens.values())
    waited = np.array([watch.first[id_] - since for id_, since in watch.added.items()])
    return {
        "hit_rate": found / int(trace.prompt_tokens.sum()),
        "chunks": watch.chunks,
        "steps": watch.steps,
        "preemptions": watch.preemptions,
        "mean_ms": float(waited.mean()),
        "p50_ms": float(np.percentile(waited, 50)),
        "p95_ms": float(np.percentile(waited, 95)),
        "total_s": watch.now / 1e3,
    }


def check(rows: list[Row]) -> Iterator[str]:
    """Name the cells in which the first token comes later than in the best of stock vLLM."""
    for natural, stock in _cells(rows):
        name = ", ".join(_name(natural))
        for figure in FIGURES:
            ours, theirs = natural[figure], stock[figure]
            if ours > ALIKE * theirs:
                yield f"{name}: {figure} {ours:.0f}, stock vLLM {theirs:.0f}"


DRAFTS = "drafts"
CELL = ("load", "model", "running", "share", DRAFTS)
FIGURES = ("mean_ms", "p95_ms")
ALL = "all"
ALIKE = 1.005
"""Times that differ by less are equal."""


def _cells(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield the row of level ``natural`` and that of vLLM's best setting, by the mean."""
    for _, group in groupby(sorted(rows, key=_name), key=_name):
        found = list(group)
        natural = [row for row in found if row["side"] == Side.NATURAL]
        stock = [row for row in found if row["side"] == Side.STOCK]
        if natural and stock:
            yield natural[-1], min(stock, key=itemgetter("mean_ms"))


def _name(row: Row) -> list[str]:
    return [str(row[part]) for part in CELL if part in row]


def tables(rows: list[Row]) -> Iterator[str]:
    """Write a table of the cells without drafts, and one of those with them."""
    for drafted in (False, True):
        if chosen := [row for row in rows if (DRAFTS in row) is drafted]:
            yield f"with{'' if drafted else 'out'} drafts:"
            yield from _table(chosen)


def _table(rows: list[Row]) -> Iterator[str]:
    """Write a table of loads and models: means over their cells, beside vLLM's best setting."""
    cells = list(_cells(rows))
    models, loads = (list(dict.fromkeys(row[part] for row in rows)) for part in ("model", "load"))
    yield f"| first token: mean; p95 | {' | '.join(models)} | found | chunks a prompt |"
    yield "|---" * (len(models) + 3) + "|"
    for load in (*loads, ALL):
        of_load = [cell for cell in cells if load in (cell[0]["load"], ALL)]
        ratios = (
            _ratios([cell for cell in of_load if cell[0]["model"] == model]) for model in models
        )
        found = "; ".join(
            f"{100 * fmean(it['hit_rate'] for it in side):.1f} %"
            for side in zip(*of_load, strict=True)
        )
        chunks = "; ".join(
            f"{fmean(it['chunks'] / it['requests'] for it in side):.2f}"
            for side in zip(*of_load, strict=True)
        )
        yield f"| {load} | {' | '.join(ratios)} | {found} | {chunks} |"
    kept = (
        sum(ours[figure] <= ALIKE * theirs[figure] for ours, theirs in cells) for figure in FIGURES
    )
    yield f"no later in {' and '.join(map(str, kept))} of {len(cells)} cells: {_ratios(cells)}"


def _ratios(cells: list[tuple[Row, Row]]) -> str:
    """Return the geometric means of what is compared, over vLLM's."""
    if not cells:
        return ""
    return "; ".join(
        f"{geometric_mean(ours[figure] / theirs[figure] for ours, theirs in cells):.2f}"
        for figure in FIGURES
    )
