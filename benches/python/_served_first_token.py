"""Time to the first token, in the virtual time of a card.

A step takes the time of kernels that were measured on that card, or an estimate from the model's
shape. Each load runs at level ``natural``, and in stock vLLM with each of its settings. At level
``natural`` states are left inside chunks of prompts, and for comparison chunks end there.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import numpy as np
from _record import Row
from _served_hits import serve
from _served_model import Case, Side, serving
from _served_rows import GIB, Cases, Chosen, deployment, read
from hybrid_blocks.geometry.step_time import StepTime, step_time
from hybrid_blocks.model import Model, load_model
from hybrid_blocks.tools.plan import plan_natural
from hybrid_blocks.tools.plan.vllm import align
from hybrid_blocks.tools.trace import Trace
from loads import generate
from natural.served import Served
from vllm.v1.core.sched.output import SchedulerOutput

MODELS = (
    *("Qwen3.5-27B", "Qwen3.5-35B-A3B", "Nemotron-H-8B"),
    *("Granite-4.0-H-Small", "Kimi-Linear-48B-A3B"),
)


@dataclass(frozen=True)
class Load:
    """The first requests of a trace, or of a generated workload where there is no ``file``.

    ``gib`` is the memory of Qwen3.5-27B. Other models get what holds as many tokens.
    """

    limit: int
    at_once: int
    gib: tuple[int, ...]
    file: str | None = None


LOADS = {
    "conversations": Load(200, 8, (60,)),
    "tools": Load(200, 16, (8, 26)),
    "agents": Load(150, 8, (12, 33)),
    "documents": Load(120, 8, (71,)),
    "code": Load(200, 16, (24,)),
    "short chats": Load(200, 16, (24,), "llmservingsim_sharegpt_qwen3_300.jsonl.gz"),
}
UNITS = (None, 64, 16)
"""``--prefix-match-unit``: the common divisor of all block sizes, and what kernels can write at."""
RETENTIONS = (0, None)
"""``--prefix-cache-retention-interval``: vLLM's default, and every block border."""
INTERVAL = 4
"""Blocks between those that the last setting keeps."""
LIKE_TOKENS = 16_384
"""Requests of this length tell how much memory another model needs for as many tokens."""


def cases(chosen: Chosen) -> Cases:
    """Yield level ``natural`` and each of stock vLLM's settings, for every load and memory."""
    for load_name in chosen.loads or LOADS:
        trace = _trace(load_name, chosen.data)
        for name in chosen.models or MODELS:
            for gib in LOADS[load_name].gib:
                for side in chosen.sides:
                    yield from _of_side(load_name, load_model(name), gib, side, trace)


def _of_side(load_name: str, model: Model, gib: int, side: Side, trace: Trace) -> Cases:
    load = LOADS[load_name]
    deployed = deployment(int(trace.total_tokens.max()) + 1)
    memory = int(gib * GIB * _of_one(model) / _of_one(load_model(MODELS[0])))
    time = step_time(model, deployed)
    assert time is not None
    about = {"load": load_name, "model": model.name, "gib": round(memory / GIB, 1), "side": side}
    about |= {"requests": len(trace), "card": deployed.card, "source": time.source}
    about["clock"] = hashlib.sha256(repr(time).encode()).hexdigest()[:8]
    settings = [(unit, retention) for unit in UNITS for retention in RETENTIONS]
    interval = INTERVAL * align.block_size(model, deployed.rank(model), deployed)
    settings.append((None, interval))
    for unit, retention in settings if side is Side.STOCK else settings[:1]:
        case = Case(model, memory, deployed, load.at_once, retention, unit)
        key = about | {"unit": unit, "retention": retention}
        yield key, partial(measure, side, case, trace, time)
        if side is Side.NATURAL:
            inside = replace(case, inside=True)
            yield key | {"inside": True}, partial(measure, side, inside, trace, time)


@cache
def _of_one(model: Model) -> int:
    """Return the bytes of one request of the length by which memories are compared."""
    plan = plan_natural(model, 64 * GIB, deployment())
    return plan.slabs(1, LIKE_TOKENS) * plan.slab_bytes


def _trace(load_name: str, data: Path) -> Trace:
    load = LOADS[load_name]
    if load.file is None:
        return generate(load_name, num_requests=load.limit)
    return read(data, load.file, load.limit)


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
        prompt = decodes = context = chunks = 0
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
                context += start
            if id_ not in self.first and request.num_computed_tokens >= request.num_tokens:
                ended.append(id_)
        if prompt + decodes:
            self.now += self.time.milliseconds(prompt, decodes, context, pairs)
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
    """Name the cases in which the first token comes later than in the best of stock vLLM."""
    for key, group in groupby(rows, key=lambda row: (row["load"], row["model"], row["gib"])):
        found = list(group)
        natural = [row["mean_ms"] for row in found if row.get("inside")]
        stock = [row["mean_ms"] for row in found if row["side"] == Side.STOCK]
        if natural and stock and natural[0] > 1.01 * min(stock):
            name = f"{key[0]}, {key[1]}, {key[2]} GiB"
            yield f"{name}: first token after {natural[0]:.0f} ms, stock vLLM {min(stock):.0f} ms"
