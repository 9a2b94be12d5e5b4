"""Figures of whole replays: memory, concurrency and hits, beside vLLM's own manager.

    python benches/python/figures.py capacity mixed hits

``--data`` names the folder of the traces, ``--record`` that of the records (benches/record).

``--limit`` scales every run. The record says what was run, with which limit, and when. What falls
short of its target is named in the end, and the exit status is 1. ``hits`` needs a record: it takes
the rows that are there from it and adds the others one by one (see hits.py). What it replays is
chosen by ``--loads``, ``--models``, ``--shares`` and ``--variants``; ``--jobs`` says in how many
processes.
"""

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hits
import msgspec
import numpy as np
import orjson
from _record import CARD, Row
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import (
    EngineConfig,
    ManagerName,
    Result,
    model_cache,
    replay,
    request_limits,
)
from hybrid_blocks.tools.replay.cache import read_shares
from hybrid_blocks.tools.trace import read_trace
from hybrid_blocks.tools.trace.builder import TraceBuilder
from public_data import DATA

GIB = 2**30
TOKENS = 8192

CAPACITY: tuple[tuple[str, int, float, dict[str, Any]], ...] = (
    ("Qwen3.5-27B", 1, 24, {}),
    ("Qwen3.5-27B", 1, 24, {"num_speculative_tokens": 2}),
    ("Qwen3.5-35B-A3B", 1, 24, {"kv_cache_dtype": "fp8"}),
    ("Nemotron-H-8B", 1, 24, {}),
    ("Granite-4.0-H-Small", 1, 24, {}),
    ("Falcon-H1-7B", 1, 24, {}),
    ("LFM2-1.2B", 1, 6, {}),
    ("gpt-oss-20b", 2, 24, {}),
    ("Gemma-3-27B", 1, 24, {}),
)
"""Model, how many times the limit of requests, GiB, and how it is deployed."""

BOTH = (ManagerName.RUST, ManagerName.VLLM)

FULL = 0.97
"""The share of memory that must work at full load."""


def deployment(**options: Any) -> Deployment:
    return Deployment(max_num_batched_tokens=TOKENS, in_flight_batches=1, card=CARD, **options)


def capacity(data: Path, limit: int) -> Iterator[Row]:
    """Memory efficiency and most running requests, all requests waiting from the start."""
    lengths = read_trace(data / "traces" / "azure_llm_2023_conv.csv.gz")
    config = EngineConfig(max_num_seqs=4096, watermark=0.0, reject_too_large=True)
    for model, times, gib, options in CAPACITY:
        cache = model_cache(model, int(gib * GIB), deployment(max_num_seqs=4096, **options))
        trace = lengths.head(times * limit).at_once()
        limits = request_limits(BOTH, cache, config)
        for manager in BOTH:
            result, _ = replay(
                trace, manager_name=manager, cache=cache, config=config, limits=limits
            )
            row = _row(result, model, times * limit)
            yield {**row, **options, "gib": gib, **_concurrency(result)}


def _concurrency(result: Result) -> Row:
    bound = result.concurrency_bound
    return {"running_over_bound": result.peak_running / bound if bound else None}


def check_capacity(rows: list[Row]) -> Iterator[str]:
    """Name the runs in which less than 0.97 of memory works, or no more run than in vLLM's."""
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        if ours["memory_efficiency"] < FULL:
            yield f"{ours['model']}: memory efficiency {ours['memory_efficiency']:.4f} < {FULL}"
        if ours["running_over_bound"] < FULL:
            yield f"{ours['model']}: {ours['running_over_bound']:.4f} of the bound run, not {FULL}"
        if ours["peak_running"] <= theirs["peak_running"]:
            yield f"{ours['model']}: {ours['peak_running']} run, {theirs['peak_running']} in vLLM"


def mixed(data: Path, limit: int) -> Iterator[Row]:
    """A few requests of 100,000 tokens among many of 300: no pool idles while another lacks."""
    del data
    builder = TraceBuilder(f"{max(2, limit // 250)} x 100,000 among {limit} x 300 tokens")
    every = limit // max(2, limit // 250)
    for index in range(limit):
        if index % every == every // 2:
            builder.add(
                [builder.fresh(100_200)], arrival=0, prompt_tokens=100_000, output_tokens=200
            )
        builder.add([builder.fresh(300)], arrival=0, prompt_tokens=200, output_tokens=100)
    trace = builder.build()
    config = EngineConfig(max_num_seqs=4096, watermark=0.0)
    for model in hits.MODELS:
        cache = model_cache(model, 24 * GIB, deployment())
        for manager in (ManagerName.RUST, ManagerName.VLLM):
            result, timeline = replay(trace, manager_name=manager, cache=cache, config=config)
            waiting = np.array(timeline.waiting) > 0
            used = np.array(timeline.used_blocks)[waiting] / result.blocks_total
            row = {**_row(result, model, len(trace)), **_concurrency(result)}
            yield {**row, "gib": 24, "use_while_waiting": float(used.mean())}


def check_mixed(rows: list[Row]) -> Iterator[str]:
    """Name the runs in which a request waited that would have fit."""
    for row in rows:
        if row["manager"] == "rust" and row["needless_waits"]:
            yield f"{row['model']}: a request waits needlessly in {row['needless_waits']} steps"


def _row(result: Result, model: str, limit: int) -> Row:
    names = (
        "manager",
        "memory_efficiency",
        "peak_running",
        "concurrency_bound",
        "full_load_steps",
        "needless_waits",
        "preemptions",
        "hit_rate",
        "recompute_flops_saved",
        "limit_no_checkpoint",
        "limit_attention_evicted",
        "wall_seconds",
    )
    figures = msgspec.to_builtins(result)
    return {"model": load_model(model).name, "limit": limit, **{n: figures[n] for n in names}}


FIGURES = {
    "capacity": (capacity, 2000, check_capacity),
    "mixed": (mixed, 2000, check_mixed),
}
"""Functions by figure, each with its number of requests and its check."""

HITS = "hits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("figures", nargs="+", choices=(*FIGURES, HITS))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--limit", type=int, help="requests of each trace")
    parser.add_argument("--record", type=Path, help="folder for a record")
    parser.add_argument("--loads", nargs="+", choices=hits.LOADS, default=list(hits.LOADS))
    parser.add_argument("--models", nargs="+", choices=hits.KINDS, default=hits.MODELS)
    parser.add_argument("--shares", type=read_shares, default=hits.SHARES, help="5%%,unbounded")
    variants = list(hits.VARIANTS)
    parser.add_argument("--variants", nargs="+", choices=variants, default=variants)
    parser.add_argument("--running", type=int, default=hits.RUNNING, help="requests at a time")
    parser.add_argument("--jobs", type=int, default=2, help="processes of the hits")
    arguments = parser.parse_args()
    if arguments.record:
        arguments.record.mkdir(parents=True, exist_ok=True)
    elif HITS in arguments.figures:
        parser.error("hits takes rows from a record and adds to it: give --record")
    missed = []
    for name in arguments.figures:
        if name == HITS:
            short = run_hits(arguments)
        else:
            figure, limit, check = FIGURES[name]
            rows = list(_printed(figure(arguments.data, arguments.limit or limit)))
            if arguments.record:
                path = arguments.record / f"{datetime.now(UTC):%Y-%m-%d}-replay-{name}.json"
                path.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n")
            short = check(rows)
        missed += [f"{name}: {line}" for line in short]
    sys.stdout.writelines(f"MISSED {line}\n" for line in missed)
    sys.exit(bool(missed))


def run_hits(arguments: argparse.Namespace) -> Iterator[str]:
    """Run the rows that the record lacks, print all, and name what falls short."""
    path = arguments.record / "replay-hits.jsonl"
    choice = hits.Choice(
        loads=arguments.loads,
        models=arguments.models,
        shares=arguments.shares,
        variants=arguments.variants,
        limit=arguments.limit,
        running=arguments.running,
    )
    order = {name: at for at, name in enumerate(choice.loads)}
    rows = list(_printed(hits.run(choice, arguments.data, path, jobs=arguments.jobs)))
    rows.sort(key=lambda row: (order[row["load"]], row["model"], row["gib"]))
    sys.stdout.writelines(f"{line}\n" for line in (*hits.table(rows), "", *hits.summary(rows)))
    return hits.check(rows)


def _printed(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        shown = {key: value for key, value in row.items() if key not in {"places", "digest"}}
        sys.stdout.write(" ".join(_text(key, value) for key, value in shown.items()) + "\n")
        sys.stdout.flush()
        yield row


def _text(key: str, value: Any) -> str:
    return f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"


if __name__ == "__main__":
    main()
