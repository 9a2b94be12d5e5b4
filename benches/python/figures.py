"""Figures of whole replays: memory, concurrency and hits, beside vLLM's own manager.

    python benches/python/figures.py capacity mixed policies hits-mooncake hits-agent

``--data`` names the folder of the traces, ``--record`` that of dated records (benches/record).

``--limit`` scales every run. The record says what was run, with which limit, and when. What falls
short of its target is named in the end, and the exit status is 1.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.model import load_model
from hybrid_blocks.plan import Deployment
from hybrid_blocks.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    Result,
    RustOptions,
    VllmOptions,
    model_cache,
    replay,
    request_limits,
)
from hybrid_blocks.replay.limits import RequestLimit
from hybrid_blocks.replay.policy import PolicyName, apply_policy
from hybrid_blocks.trace import Trace, read_trace
from hybrid_blocks.trace.builder import TraceBuilder
from hybrid_blocks.trace.prefixes import prefix_ids

Row = dict[str, Any]

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

HIT_MODELS = ("Qwen3.5-27B", "Nemotron-H-8B")
GRAIN = {"mooncake": 512, "agent": 64}
"""Tokens of the traces' own block ids: prefixes are shared in multiples of them. vLLM chooses its
own blocks."""

SHARES = (0.05, 0.10, 0.20, 0.40)

HIT_ENGINE = EngineConfig(max_num_seqs=16, watermark=0.0, reject_too_large=True)
"""So few requests at a time that the cache, not the batch, fills the memory."""

TRACES = {
    "mooncake": "mooncake_fast25_conversation_trace.jsonl.gz",
    "agent": "claude_code_agentic_dev.jsonl.gz",
}

LOOKAHEAD = 0.85
"""The share of hits of a policy that sees the future."""

FULL = 0.97
"""The share of memory that must work at full load."""


def deployment(**options: Any) -> Deployment:
    return Deployment(max_num_batched_tokens=TOKENS, in_flight_batches=1, **options)


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
    for model in HIT_MODELS:
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


def hits(name: str, data: Path, limit: int) -> Iterator[Row]:
    """Hit rates at shares of what a cache would hold that loses nothing, beside vLLM's."""
    yield from _sizes(read_trace(data / "traces" / TRACES[name]).head(limit), name, _all_results)


def policies(data: Path, limit: int) -> Iterator[Row]:
    """The same over many more requests, without vLLM, which would take hours."""
    whole = read_trace(data / "traces" / TRACES["mooncake"])
    yield from _sizes(whole.head(limit), "mooncake", _rust_results)


Results = Iterator[tuple[str, Result]]


def _sizes(trace: Trace, name: str, results: Callable[[Trace, Cache], Results]) -> Iterator[Row]:
    for model in HIT_MODELS:
        deployed = deployment(block_size=GRAIN[name])
        unbounded = _unbounded_bytes(trace, model, deployed)
        for share in SHARES:
            gib = round(share * unbounded / GIB, 1)
            cache = model_cache(model, int(share * unbounded), deployed)
            for policy, result in results(trace, cache):
                about = {"trace": name, "unbounded_share": share, "gib": gib, "policy": policy}
                yield {**_row(result, model, len(trace)), **about}


def _rust_results(trace: Trace, cache: Cache, limits: Sequence[RequestLimit] = ()) -> Results:
    for policy in PolicyName:
        rust = apply_policy(
            policy, trace, cache, HIT_ENGINE, RustOptions(placement=CheckpointPolicy())
        )
        yield f"rust {policy}", _replay(trace, cache, ManagerName.RUST, rust=rust, limits=limits)


def _all_results(trace: Trace, cache: Cache) -> Results:
    limits = request_limits(BOTH, cache, HIT_ENGINE)
    yield from _rust_results(trace, cache, limits)
    for label, retention in (("default", 0), ("dense", None), ("4096", 4096)):
        vllm = VllmOptions(retention=retention)
        yield f"vllm {label}", _replay(trace, cache, ManagerName.VLLM, vllm=vllm, limits=limits)


def _replay(trace: Trace, cache: Cache, manager: ManagerName, **options: Any) -> Result:
    result, _ = replay(trace, manager_name=manager, cache=cache, config=HIT_ENGINE, **options)
    return result


def check_hits(rows: list[Row]) -> Iterator[str]:
    """Name the sizes at which a policy hits less than it should."""
    about = ("trace", "model", "unbounded_share")
    for case, group in groupby(rows, key=lambda row: tuple(row[name] for name in about)):
        found = {row["policy"]: row for row in group}
        title = " ".join(str(part) for part in case)
        lru, flop = found["rust lru"], found["rust flop"]
        ours = max(lru["hit_rate"], flop["hit_rate"])
        best = found["rust lookahead"]["hit_rate"]
        if ours < LOOKAHEAD * best:
            yield f"{title}: hit rate {ours:.3f} is {ours / best:.2f} of lookahead's {best:.3f}"
        if flop["recompute_flops_saved"] < lru["recompute_flops_saved"]:
            yield f"{title}: flop saves less than lru"
        theirs = [row["hit_rate"] for policy, row in found.items() if policy.startswith("vllm")]
        worst = min(lru["hit_rate"], flop["hit_rate"])
        if theirs and worst <= max(theirs):
            yield f"{title}: hit rate {worst:.3f}, vLLM's best {max(theirs):.3f}"


def _unbounded_bytes(trace: Trace, model: str, deployed: Deployment) -> int:
    """Bytes of all distinct blocks of a trace, and of checkpoints if none is ever lost.

    They lie at the ends of prompts and at branches, so that the sizes do not follow every change of
    the manager's own placement.
    """
    geometry = model_cache(model, 1024 * GIB, deployed).geometry
    blocks = len(np.unique(prefix_ids(trace, geometry.hash_block_size)[0]))
    states = [group for group in geometry.groups if group.kind == "state"]
    tokens = sum(group.block_bytes for group in geometry.groups if group.grows) * blocks
    room = model_cache(model, 4 * tokens + 1024 * GIB, deployed)
    plain = RustOptions(placement=CheckpointPolicy(prompt_margin=0, finish=False))
    result = _replay(trace, room, ManagerName.RUST, rust=plain)
    kept = (result.checkpoints or 0) // len(states)
    return tokens + kept * sum(group.block_bytes for group in states)


def _row(result: Result, model: str, limit: int) -> Row:
    names = (
        "manager",
        "memory_efficiency",
        "peak_running",
        "concurrency_bound",
        "full_load_steps",
        "needless_waits",
        "preemptions",
        "compactions",
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
    "hits-mooncake": (partial(hits, "mooncake"), 2000, check_hits),
    "hits-agent": (partial(hits, "agent"), 600, check_hits),
    "policies": (policies, 12_031, check_hits),
}
"""What is run, with how many requests, and what it is held against."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("figures", nargs="+", choices=FIGURES)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--limit", type=int, help="requests of each trace")
    parser.add_argument("--record", type=Path, help="folder for a dated record")
    arguments = parser.parse_args()
    missed = []
    for name in arguments.figures:
        figure, limit, check = FIGURES[name]
        rows = []
        for row in figure(arguments.data, arguments.limit or limit):
            rows.append(row)
            sys.stdout.write(" ".join(_text(key, value) for key, value in row.items()) + "\n")
            sys.stdout.flush()
        if arguments.record:
            arguments.record.mkdir(parents=True, exist_ok=True)
            path = arguments.record / f"{datetime.now(UTC):%Y-%m-%d}-replay-{name}.json"
            path.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n")
        missed += [f"{name}: {short}" for short in check(rows)]
    sys.stdout.writelines(f"MISSED {short}\n" for short in missed)
    sys.exit(bool(missed))


def _text(key: str, value: Any) -> str:
    return f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"


if __name__ == "__main__":
    main()
