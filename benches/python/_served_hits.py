"""Prompt tokens of traces found in the cache, at several sizes of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from _record import Row
from _served_model import Case, Side, serving
from _served_rows import GIB, MODELS, Cases, Chosen, deployment, read
from hits import MOONCAKE
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.trace import Trace
from loads import generate
from natural.served import Served
from vllm.v1.core.sched.output import SchedulerOutput


@dataclass(frozen=True)
class Load:
    """A slice of a trace, replayed with ``at_once`` requests in the engine.

    Without a ``file`` it is the generated workload of its name.
    """

    file: str | None
    limit: int
    gib: tuple[int, ...]
    at_once: int


LOADS = {
    "conversations": Load(MOONCAKE, 150, (24, 48, 96), 8),
    "coding agents": Load("claude_code_agentic_dev.jsonl.gz", 150, (24, 48, 96), 4),
    "documents": Load(None, 500, (20, 35, 71, 142), 16),
    "agents": Load(None, 500, (12, 17, 33, 67), 16),
    "tools": Load(None, 500, (8, 13, 26, 53), 16),
    "changing": Load(None, 500, (16, 27, 55, 109), 16),
}


def cases(chosen: Chosen) -> Cases:
    """Yield level ``natural`` and each of stock vLLM's settings, for every load and size."""
    for load_name in chosen.loads or LOADS:
        for name in chosen.models or MODELS[:1]:
            yield from _of_load(load_name, name, _trace(load_name, chosen.data))


def _trace(load_name: str, data: Path) -> Trace:
    load = LOADS[load_name]
    if load.file is None:
        return generate(load_name, num_requests=load.limit)
    return read(data, load.file, load.limit)


def _of_load(load_name: str, name: str, trace: Trace) -> Cases:
    load, model = LOADS[load_name], load_model(name)
    deployed = deployment(int(trace.total_tokens.max()) + 1)
    for gib in load.gib:
        for side in Side:
            case = Case(model, gib * GIB, deployed, load.at_once, inside=True, fast=True)
            for setting in case.settings() if side is Side.STOCK else (case,):
                about = {"load": load_name, "model": name, "gib": gib, "side": side}
                about |= {"retention": setting.retention, "requests": len(trace)}
                if setting.match_unit is not None:
                    about["unit"] = setting.match_unit
                yield about, partial(measure, side, setting, trace)


def measure(side: Side, case: Case, trace: Trace) -> Row:
    """Serve a trace, a fixed number of requests at a time; count what was found and computed."""
    num_computed = num_preempted = num_steps = 0

    def count(scheduled: SchedulerOutput) -> None:
        nonlocal num_computed, num_preempted, num_steps
        num_computed += scheduled.total_num_scheduled_tokens
        num_preempted += len(scheduled.preempted_req_ids or ())
        num_steps += 1

    with serving(side, case) as served:
        serve(served, trace, case.num_requests, count)
        found = sum(served.num_hit_tokens.values())
    prompt_tokens = int(trace.prompt_tokens.sum())
    return {
        "hit_tokens": found,
        "hit_rate": found / prompt_tokens,
        "prompt_tokens": prompt_tokens,
        "computed_tokens": num_computed,
        "preemptions": num_preempted,
        "steps": num_steps,
    }


def serve(
    served: Served,
    trace: Trace,
    at_once: int,
    watch: Callable[[SchedulerOutput], object],
    on_add: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve a trace with ``at_once`` requests in the engine.

    ``watch`` sees each step, and ``on_add`` the name of each request that the engine gets.
    """
    waiting = list(range(len(trace)))
    while waiting or served.scheduler.requests:
        for number in waiting[: 4 * at_once]:
            if len(served.scheduler.requests) >= at_once:
                break
            if _is_ready(trace, number, served):
                tokens = trace.token_ids(number).tolist()
                prompt = tokens[: int(trace.prompt_tokens[number])]
                served.add(str(number), prompt, tokens[len(prompt) :])
                on_add(str(number))
                waiting.remove(number)
        served.step(watch)


def _is_ready(trace: Trace, number: int, served: Served) -> bool:
    """Whether the request that this one follows has finished."""
    before = int(trace.follows[number])
    return before < 0 or (str(before) in served.num_hit_tokens and not served.is_known(str(before)))


def check(rows: list[Row]) -> Iterator[str]:
    """Name the sizes at which no more is found than in stock vLLM."""
    for key, group in groupby(rows, key=lambda row: (row["load"], row["model"], row["gib"])):
        found = list(group)
        natural = next(row["hit_rate"] for row in found if row["side"] == Side.NATURAL)
        stock = max(row["hit_rate"] for row in found if row["side"] == Side.STOCK)
        if natural <= stock:
            yield f"{key[0]}, {key[1]}, {key[2]} GiB: hits {natural:.2%}, stock vLLM {stock:.2%}"
