"""Copies a step while 256 requests run, and the host's time to list them."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from time import perf_counter_ns
from typing import Any

import numpy as np
from _record import Row
from _served_model import Case, Side, serving
from _served_rows import GIB, MODELS, Cases, Chosen, deployment
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.profile.workload import steady

RUNNING = 256


def cases(chosen: Chosen) -> Cases:
    """Yield both sides of each model."""
    for name in chosen.models or MODELS:
        yield from _of_model(name)


def _of_model(name: str) -> Cases:
    case = Case(load_model(name), 192 * GIB, deployment(), num_requests=RUNNING)
    for side in Side:
        yield {"model": name, "side": side, "running": RUNNING}, partial(measure, side, case)


def measure(side: Side, case: Case, warm_up: int = 300, num_steps: int = 300) -> Row:
    """Serve a steady load and count copies."""
    counts: list[int] = []
    times: list[int] = []
    sources: list[int] = []
    with serving(side, case) as served:
        manager = served.scheduler.kv_cache_manager
        take = manager.take_kv_cache_block_copies

        def timed() -> Any:
            start = perf_counter_ns()
            taken = take()
            times.append(perf_counter_ns() - start)
            return taken

        manager.take_kv_cache_block_copies = timed

        def see(scheduled: Any) -> None:
            listed = scheduled.kv_cache_block_copies or []
            counts.append(len(listed))
            read = {copy.src_block_id for copy in listed}
            sources.append(len(read & {copy.dst_block_id for copy in listed}))

        jobs = steady(1024, 528, 256, seed=0)
        numbers = count()
        for _ in range(warm_up + num_steps):
            while len(served.scheduler.requests) < RUNNING:
                prompt, num_outputs = next(jobs)
                served.add(str(next(numbers)), prompt, [7] * num_outputs)
            served.step(see)
    counts, times = counts[warm_up:], times[-num_steps:]
    return {
        "copies_a_step": sum(counts) / num_steps,
        "most_copies": max(counts),
        "read_and_written": sum(sources),
        "list_us_p50": float(np.median(times)) / 1e3,
        "list_us_p99": float(np.percentile(times, 99)) / 1e3,
    }


def check(rows: list[Row]) -> Iterator[str]:
    """Name the models in which a step reads and writes one slab."""
    for row in rows:
        if row["side"] == Side.NATURAL and row["read_and_written"]:
            yield f"{row['model']}: {row['read_and_written']} slabs are read and written in a step"
