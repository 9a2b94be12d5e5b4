"""Requests that run before the first preemption, and what of their memory is live."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from _record import Row
from _served_model import Case, Side, serving
from _served_rows import GIB, Cases, Chosen, deployment, pairs, read
from hybrid_blocks.model import load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.plan import ArenaPlan, plan_natural
from hybrid_blocks.tools.replay.cache import LiveBytes
from hybrid_blocks.tools.trace import Trace
from natural.served import Served

NUM_REQUESTS = 400
MEAN_REQUESTS, MEAN_TOKENS = 64, 1366
"""The planner fits this number of requests of the Azure conversations' mean length."""
FULL_LOAD_STEPS = 200
FULL = 0.97
"""The share of reserved bytes that must be live."""


def hybrid_models() -> list[str]:
    """Return the built-in models that keep recurrent states."""
    return [name for name in entries() if load_model(name).is_hybrid]


def num_planned(plan: ArenaPlan, lengths: Iterable[int]) -> int:
    """Return how many requests of these lengths, in their order, the plan holds while they decode.

    Each pool is rounded up to whole slabs, as in `ArenaPlan.slabs`.
    """
    blocks = [0] * len(plan.pools)
    planned = 0
    for length in lengths:
        for pool, count in enumerate(plan.decode_blocks(length)):
            blocks[pool] += count
        slabs = sum(-(-count // cut) for count, cut in zip(blocks, plan.pools, strict=True))
        if slabs > plan.usable_slabs:
            break
        planned += 1
    return planned


@dataclass
class Watch:
    """Follows an engine that is given more requests than it holds."""

    served: Served
    plan: ArenaPlan
    memory_bytes: int
    running: int = 0
    """Most that ran before the first preemption."""
    short: int = 0
    """By how many fewer ran than their own lengths allow, at most, when memory was refused."""
    has_preempted: bool = False
    full_steps: int = 0
    """Steps in which a request was refused memory."""
    reserved: float = 0.0
    of_memory: float = 0.0

    def __post_init__(self) -> None:
        self._live = LiveBytes(self.plan)
        config = self.served.config
        self._block_bytes = config.kv_cache_tensors[0].size / config.num_blocks
        manager = self.served.scheduler.kv_cache_manager
        self._allocate, self._is_refused = manager.allocate_slots, False
        manager.allocate_slots = self._allocate_watched

    def _allocate_watched(self, *args: Any, **kwargs: Any) -> Any:
        blocks = self._allocate(*args, **kwargs)
        self._is_refused |= blocks is None
        return blocks

    def see(self, scheduled: Any) -> None:
        """Look at a step before it gets its outputs."""
        running, waiting = self.served.scheduler.running, self.served.scheduler.waiting
        is_refused, self._is_refused = self._is_refused, False
        lengths = [request.num_computed_tokens for request in running]
        if not self.has_preempted:
            self.running = max(self.running, len(running))
            if is_refused:
                would_run = [*lengths, *(request.num_tokens for request in waiting)]
                self.short = max(self.short, num_planned(self.plan, would_run) - len(running))
            self.has_preempted = bool(scheduled.preempted_req_ids)
        if is_refused:
            live = self._live.of(np.array(lengths))
            self.full_steps += 1
            self.reserved += live / (self.served.reserved_blocks * self._block_bytes)
            self.of_memory += live / self.memory_bytes


def cases(chosen: Chosen) -> Cases:
    """Yield both sides of every hybrid model, at the bytes that hold 64 mean requests."""
    trace = read(chosen.data, "azure_llm_2023_conv.csv.gz", NUM_REQUESTS)
    for name in chosen.models or hybrid_models():
        yield from _of_model(name, trace)


def _of_model(name: str, trace: Trace) -> Cases:
    model, deployed = load_model(name), deployment()
    slabs = plan_natural(model, 64 * GIB, deployed).slabs(MEAN_REQUESTS, MEAN_TOKENS) + 1
    slab_bytes = plan_natural(model, 64 * GIB, deployed).slab_bytes
    case = Case(model, slabs * slab_bytes, deployed, num_requests=1024)
    plan = plan_natural(model, case.memory_bytes, deployed)
    for side in Side:
        about = {"model": name, "side": side, "gib": round(case.memory_bytes / GIB, 3)}
        yield about | {"requests": len(trace)}, partial(measure, side, case, plan, trace)


def measure(side: Side, case: Case, plan: ArenaPlan, trace: Trace) -> Row:
    """Serve the whole trace from one queue, until memory was full for some steps."""
    with serving(side, case) as served:
        for number in range(len(trace)):
            tokens = int(trace.prompt_tokens[number])
            outputs = [7] * int(trace.output_tokens[number])
            first = int(trace.span_first[trace.span_start[number]])
            served.add(str(number), list(range(first, first + tokens)), outputs)
        watch = Watch(served, plan, case.memory_bytes)
        while not watch.has_preempted or watch.full_steps < FULL_LOAD_STEPS:
            if not served.scheduler.has_requests():
                break
            served.step(watch.see)
    return {
        "running": watch.running,
        "short_of_plan": watch.short,
        "has_preempted": watch.has_preempted,
        "live_over_reserved": watch.reserved / max(1, watch.full_steps),
        "live_over_memory": watch.of_memory / max(1, watch.full_steps),
        "full_load_steps": watch.full_steps,
    }


def check(rows: list[Row]) -> Iterator[str]:
    """Name the models in which fewer run than planned, or no more than in stock vLLM."""
    for stock, natural in pairs(rows, "model"):
        name = natural["model"]
        if natural["running"] < MEAN_REQUESTS - 1:
            yield f"{name}: {natural['running']} run, {MEAN_REQUESTS} are planned"
        if natural["running"] <= stock["running"]:
            yield f"{name}: {natural['running']} run, {stock['running']} in stock vLLM"
        if natural["live_over_reserved"] < FULL:
            live = natural["live_over_reserved"]
            yield f"{name}: {live:.4f} of reserved bytes are live, not {FULL}"
