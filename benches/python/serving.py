"""Figures of level ``natural`` in vLLM's own scheduler, beside stock vLLM at equal bytes.

    python benches/python/serving.py running prompts copies hits --data DATA --record RECORD

vLLM's functions plan the memory of a model, vLLM's scheduler serves requests whose outputs are
told to it; no weights and no GPU. ``--data`` names the folder of the traces, ``--record`` that of
the record. A row that is in the record is not run again unless the code under it changed. What
falls short of its target is named in the end, and the exit status is 1. All but times are the same
in every run.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import hybrid_blocks
import numpy as np
from _served_model import Case, Served, Side, serving
from hits import MOONCAKE, Record
from hybrid_blocks.model import load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.plan import ArenaPlan, Deployment, plan_natural
from hybrid_blocks.profile.workload import steady
from hybrid_blocks.replay.live_bytes import LiveBytes
from hybrid_blocks.trace import Trace, read_trace
from vllm import __version__ as vllm_version

Row = dict[str, Any]

GIB = 2**30
MAX_MODEL_LEN = 16_384
TOKENS = 8192
"""Tokens a step."""

MEAN_REQUESTS, MEAN_TOKENS = 64, 1366
"""The memory of a model holds so many requests of the Azure conversations' mean length."""
FULL_LOAD_STEPS = 200
FULL = 0.97

SHORT = range(12, 501)
"""Prompts that return, in tokens."""

RUNNING = 256


@dataclass(frozen=True)
class Load:
    """A slice of a trace, replayed with ``at_once`` requests in the engine."""

    file: str
    limit: int
    gib: tuple[int, ...]
    at_once: int


LOADS = {
    "conversations": Load(MOONCAKE, 300, (24, 48, 96, 192), 8),
    "coding agents": Load("claude_code_agentic_dev.jsonl.gz", 300, (24, 48, 96, 192), 4),
}
HIT_MODELS = ("Qwen3.5-27B", "Nemotron-H-8B")
RETENTIONS = (0, None)
"""vLLM's default, and every block border."""


def hybrid_models() -> list[str]:
    """Return the built-in models that keep recurrent states."""
    return [name for name in entries() if load_model(name).is_hybrid]


def deployment(length: int = MAX_MODEL_LEN) -> Deployment:
    """Return how models are deployed: no drafts, one GPU, one batch in flight."""
    return Deployment(max_model_len=length, max_num_batched_tokens=TOKENS, in_flight_batches=1)


# --- requests running before the first preemption ----------------------------


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
    planned: int = 0
    """What the plan would have held at that moment: those, and the next that waited."""
    has_preempted: bool = False
    full_steps: int = 0
    reserved: float = 0.0
    of_memory: float = 0.0

    def __post_init__(self) -> None:
        self._live = LiveBytes(self.plan)
        config = self.served.config
        self._block_bytes = self.memory_bytes / config.num_blocks
        if config.kv_cache_tensors:
            self._block_bytes = config.kv_cache_tensors[0].size / config.num_blocks

    def see(self, scheduled: Any) -> None:
        """Look at a step before its outputs are told."""
        scheduler = self.served.scheduler
        waiting = [*scheduler.skipped_waiting, *scheduler.waiting]
        self.has_preempted |= bool(scheduled.preempted_req_ids)
        is_full = waiting and scheduled.total_num_scheduled_tokens < TOKENS
        running = scheduler.running
        if not self.has_preempted and len(running) >= self.running:
            self.running = len(running)
            # A request's next token has to fit too.
            lengths = [request.num_computed_tokens for request in running]
            lengths += [request.num_tokens for request in waiting] if is_full else []
            self.planned = num_planned(self.plan, lengths)
        if is_full:
            live = self._live.of(np.array([request.num_computed_tokens for request in running]))
            self.full_steps += 1
            self.reserved += live / (self.served.reserved_blocks * self._block_bytes)
            self.of_memory += live / self.memory_bytes


def running(name: str, trace: Trace) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Requests that run at once, all waiting from the start, and what of their memory is live."""
    model, deployed = load_model(name), deployment()
    slabs = plan_natural(model, 64 * GIB, deployed).slabs(MEAN_REQUESTS, MEAN_TOKENS) + 1
    slab_bytes = plan_natural(model, 64 * GIB, deployed).slab_bytes
    case = Case(model, slabs * slab_bytes, deployed, num_requests=1024)
    plan = plan_natural(model, case.memory_bytes, deployed)
    for side in Side:
        about = {"model": name, "side": side, "gib": round(case.memory_bytes / GIB, 3)}
        yield about, partial(_run_full, side, case, plan, trace)


def _run_full(side: Side, case: Case, plan: ArenaPlan, trace: Trace) -> Row:
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
        "planned": watch.planned,
        "has_preempted": watch.has_preempted,
        "live_over_reserved": watch.reserved / max(1, watch.full_steps),
        "live_over_memory": watch.of_memory / max(1, watch.full_steps),
        "full_load_steps": watch.full_steps,
    }


def check_running(rows: list[Row]) -> Iterator[str]:
    """Name the models in which fewer run than planned, or no more than in stock vLLM."""
    for stock, natural in _pairs(rows, "model"):
        name = natural["model"]
        if natural["running"] < natural["planned"] - 1:
            yield f"{name}: {natural['running']} run, {natural['planned']} are planned"
        if natural["running"] <= stock["running"]:
            yield f"{name}: {natural['running']} run, {stock['running']} in stock vLLM"
        if natural["live_over_reserved"] < FULL:
            live = natural["live_over_reserved"]
            yield f"{name}: {live:.4f} of reserved bytes are live, not {FULL}"


# --- hits --------------------------------------------------------------------


def hits(load_name: str, name: str, trace: Trace) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Prompt tokens found in the cache, at several sizes of it."""
    load, model = LOADS[load_name], load_model(name)
    longest = int(trace.total_tokens.max()) + 1
    for gib in load.gib:
        for side in Side:
            for retention in RETENTIONS if side is Side.STOCK else RETENTIONS[:1]:
                case = Case(model, gib * GIB, deployment(longest), load.at_once, retention)
                about = {"load": load_name, "model": name, "gib": gib, "side": side}
                about |= {"retention": retention, "requests": len(trace)}
                yield about, partial(_run_hits, side, case, trace)


def _run_hits(side: Side, case: Case, trace: Trace) -> Row:
    with serving(side, case) as served:
        waiting, num_steps = list(range(len(trace))), 0
        while waiting or served.scheduler.requests:
            for number in waiting[: 4 * case.num_requests]:
                if len(served.scheduler.requests) >= case.num_requests:
                    break
                if _is_ready(trace, number, served):
                    tokens = trace.token_ids(number).tolist()
                    prompt = tokens[: int(trace.prompt_tokens[number])]
                    served.add(str(number), prompt, tokens[len(prompt) :])
                    waiting.remove(number)
            served.step()
            num_steps += 1
        found = sum(served.num_hit_tokens.values())
    prompt_tokens = int(trace.prompt_tokens.sum())
    return {
        "hit_tokens": found,
        "hit_rate": found / prompt_tokens,
        "prompt_tokens": prompt_tokens,
        "steps": num_steps,
    }


def _is_ready(trace: Trace, number: int, served: Served) -> bool:
    """Whether the request that this one follows has finished."""
    before = int(trace.follows[number])
    return before < 0 or (str(before) in served.num_hit_tokens and not served.is_known(str(before)))


def check_hits(rows: list[Row]) -> Iterator[str]:
    """Name the sizes at which no more is found than in stock vLLM."""
    for key, group in groupby(rows, key=lambda row: (row["load"], row["model"], row["gib"])):
        found = list(group)
        natural = next(row["hit_rate"] for row in found if row["side"] == Side.NATURAL)
        stock = max(row["hit_rate"] for row in found if row["side"] == Side.STOCK)
        if natural <= stock:
            yield f"{key[0]}, {key[1]}, {key[2]} GiB: hits {natural:.2%}, stock vLLM {stock:.2%}"


# --- short prompts -----------------------------------------------------------


def prompts(name: str) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """What of a prompt is found when it returns, for each length."""
    case = Case(load_model(name), 24 * GIB, deployment(), num_requests=16)
    for side in Side:
        yield {"model": name, "side": side}, partial(_run_prompts, side, case)


def _run_prompts(side: Side, case: Case) -> Row:
    with serving(side, case) as served:
        found = []
        for length in SHORT:
            prompt = list(range(length * 1000, length * 1000 + length))
            for turn in ("first", "again"):
                served.add(f"{length} {turn}", prompt, [7])
                while served.scheduler.requests:
                    served.step()
            found.append(served.num_hit_tokens[f"{length} again"])
        block = served.scheduler.hash_block_size
    return {
        "hash_block_tokens": block,
        "lengths": [SHORT.start, SHORT.stop - 1],
        "at_every_block": sum(
            hit == (length - 1) // block * block for hit, length in zip(found, SHORT, strict=True)
        ),
        "hits": sum(hit > 0 for hit in found),
        "hit_rate": sum(found) / sum(SHORT),
        "prompts": len(found),
    }


def check_prompts(rows: list[Row]) -> Iterator[str]:
    """Name the models in which a prompt that returns is not found up to its last whole block."""
    for row in rows:
        if row["side"] == Side.NATURAL and row["at_every_block"] < row["prompts"]:
            missed = row["prompts"] - row["at_every_block"]
            yield f"{row['model']}: {missed} of {row['prompts']} prompts end before their last block"


# --- copies ------------------------------------------------------------------


def copies(name: str) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Copies of slabs or blocks a step while 256 requests run, and the time to list them."""
    case = Case(load_model(name), 192 * GIB, deployment(), num_requests=RUNNING)
    for side in Side:
        yield {"model": name, "side": side, "running": RUNNING}, partial(_run_copies, side, case)


def _run_copies(side: Side, case: Case, warm_up: int = 300, num_steps: int = 300) -> Row:
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
        for number in range(warm_up + num_steps):
            while len(served.scheduler.requests) < RUNNING:
                prompt, num_outputs = next(jobs)
                served.add(f"{number} {len(served.num_hit_tokens)}", prompt, [7] * num_outputs)
                served.num_hit_tokens.setdefault(f"{number} {len(served.num_hit_tokens)}", 0)
            served.step(see)
    counts, times = counts[warm_up:], times[-num_steps:]
    return {
        "copies_a_step": sum(counts) / num_steps,
        "most_copies": max(counts),
        "read_and_written": sum(sources),
        "list_us_p50": float(np.median(times)) / 1e3,
        "list_us_p99": float(np.percentile(times, 99)) / 1e3,
    }


def check_copies(rows: list[Row]) -> Iterator[str]:
    """Name the models in which a step reads and writes one slab."""
    for row in rows:
        if row["side"] == Side.NATURAL and row["read_and_written"]:
            yield f"{row['model']}: {row['read_and_written']} slabs are read and written in a step"


# --- running, and the record -------------------------------------------------

Cases = Iterator[tuple[Row, Callable[[], Row]]]


def cases(figure: str, data: Path, models: list[str] | None) -> Cases:
    """Yield what a row is of, and what makes it."""
    match figure:
        case "running":
            trace = _trace(data, "azure_llm_2023_conv.csv.gz", 400)
            for name in models or hybrid_models():
                yield from running(name, trace)
        case "hits":
            for load_name, load in LOADS.items():
                for name in models or HIT_MODELS:
                    yield from hits(load_name, name, _trace(data, load.file, load.limit))
        case "prompts":
            for name in models or HIT_MODELS:
                yield from prompts(name)
        case "copies":
            for name in models or HIT_MODELS:
                yield from copies(name)


CHECKS = {
    "running": check_running,
    "prompts": check_prompts,
    "copies": check_copies,
    "hits": check_hits,
}


@cache
def _trace(data: Path, file: str, limit: int) -> Trace:
    return read_trace(data / "traces" / file).head(limit)


@cache
def code(side: Side) -> str:
    """Name the code that a side's rows depend on."""
    if side is Side.STOCK:
        return f"vllm {vllm_version}"
    package = Path(hybrid_blocks.__file__).parent
    files = [*package.glob("_core*.so"), *sorted((package / "vllm").rglob("*.py"))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def rows(figure: str, found: Cases, record: Record) -> Iterator[Row]:
    """Yield the rows of a figure, from the record where they are there."""
    for about, run in found:
        key = {"figure": figure, **about, "code": code(about["side"])}
        digest = hashlib.sha256(repr(sorted(key.items())).encode()).hexdigest()[:24]
        if digest not in record.rows:
            record.add({**key, **run(), "digest": digest})
        yield record.rows[digest]


def _pairs(found: list[Row], *names: str) -> Iterator[tuple[Row, Row]]:
    for _, group in groupby(found, key=lambda row: tuple(row[name] for name in names)):
        sides = {row["side"]: row for row in group}
        yield sides[Side.STOCK], sides[Side.NATURAL]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("figures", nargs="+", choices=CHECKS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--record", type=Path, default=Path("benches/record"))
    parser.add_argument("--models", nargs="+", help="built-in models instead of those of the figure")
    arguments = parser.parse_args()
    record = Record(arguments.record / "vllm-natural.jsonl")
    missed = []
    for figure in arguments.figures:
        found = []
        for row in rows(figure, cases(figure, arguments.data, arguments.models), record):
            sys.stdout.write(_line(row) + "\n")
            sys.stdout.flush()
            found.append(row)
        missed += [f"{figure}: {line}" for line in CHECKS[figure](found)]
    sys.stdout.writelines(f"MISSED {line}\n" for line in missed)
    sys.exit(bool(missed))


def _line(row: Row) -> str:
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in row.items()
        if key not in {"digest", "code"}
    )


if __name__ == "__main__":
    main()
