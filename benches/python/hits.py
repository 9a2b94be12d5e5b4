"""Hits of whole replays beside vLLM's manager, row by row, so that a killed run loses nothing.

A row is what one variant does with one load and one size of the cache. It is kept in a file of JSON
lines, under a digest of what it depends on: rows of ours of the package's code, vLLM's of vLLM's
release. A row whose digest is there already is not run again.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as remember
from functools import partial
from itertools import groupby, product
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from statistics import fmean

import _test_folders  # noqa: F401
import msgspec
from _record import CARD, Record, Row, code_of, stock_code
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    Result,
    model_cache,
    replay,
    request_limits,
)
from hybrid_blocks.tools.replay.cache import SharedCache, share_text
from hybrid_blocks.tools.replay.config import RefusedRequestError
from hybrid_blocks.tools.replay.limits import Refusal, RequestLimit, find_too_large
from hybrid_blocks.tools.replay.managers import vllm_settings
from hybrid_blocks.tools.replay.run import Variant
from hybrid_blocks.tools.trace import Trace, read_trace
from loads import generate

GIB = 2**30
MODELS = ("Qwen3.5-27B", "Nemotron-H-8B")
KINDS = (
    *MODELS,
    "gpt-oss-20b",
    "Gemma-3-27B",
    "Gemma-4-31B",
    "Kimi-Linear-48B-A3B",
    "Granite-4.0-H-Small",
    "Phi-4",
)
"""At least one of each kind: states, windows, both or neither beside full attention."""
SHARES = (0.05, 0.10, 0.20, 0.40, 1.0, math.inf)
RUNNING = 16
"""So few requests at a time that the cache, not the batch, fills the memory."""


def engine(running: int = RUNNING) -> EngineConfig:
    """Return an engine that runs that many requests at a time, at most."""
    return EngineConfig(max_num_seqs=running, watermark=0.0, reject_too_large=True)


ENGINE = engine()

FIXED = Variant(placement="fixed:128")
OURS = (
    Variant(),
    FIXED,
    Variant(signal=0.8),
)
VLLM = tuple(
    Variant(manager=ManagerName.VLLM, vllm=options)
    for options in vllm_settings(load_model(MODELS[0]), Deployment(card=CARD))
)
"""vLLM's default, and settings that may be better. Some models take fewer."""

OF_BOUND = {"agents": 0.99, "agent trace": 0.99}
"""The share of what attention alone allows that an unbounded cache has to reach."""
OTHERS_OF_BOUND = 0.97
ALIKE = 0.0005
"""Hit rates that differ by less are equal."""


VARIANTS = {variant.name: variant for variant in (*VLLM, *OURS)}


@dataclass(frozen=True, slots=True)
class Load:
    """Requests to replay.

    Attributes:
        file: of the recorded trace; None for a generated workload.
        limit: requests.
        grain: tokens of the trace's own block ids; prefixes are shared in multiples of them. None
            for the plan's own blocks.
    """

    file: str | None
    limit: int
    grain: int | None = None


MOONCAKE = "mooncake_fast25_conversation_trace.jsonl.gz"
LOADS = {
    "documents": Load(None, 1000),
    "mooncake": Load(MOONCAKE, 2500, 512),
    "conversations": Load(None, 1000),
    "agents": Load(None, 1000),
    "tools": Load(None, 1000),
    "single": Load(None, 1000),
    "templates": Load(None, 1000),
    "seats": Load(None, 1000),
    "changing": Load(None, 1000),
    "agent trace": Load("claude_code_agentic_dev.jsonl.gz", 600, 64),
    "sharegpt": Load("llmservingsim_sharegpt_qwen3_300.jsonl.gz", 300),
    "mooncake whole": Load(MOONCAKE, 12_031, 512),
}
"""The Azure trace is not among them: its requests share nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The part of all replays to run.

    Attributes:
        loads, models: by name.
        shares: of an unbounded cache.
        variants: by name.
        limit: most requests of a load; None for all that it has.
        running: most requests at a time.
    """

    loads: Sequence[str] = tuple(LOADS)
    models: Sequence[str] = MODELS
    shares: Sequence[float] = SHARES
    variants: Sequence[str] = tuple(VARIANTS)
    limit: int | None = None
    running: int = RUNNING


def run(choice: Choice, data: Path, path: Path, *, jobs: int) -> Iterator[Row]:
    """Yield all rows of a choice, of every case when its last one is there."""
    cases = list(product(choice.loads, choice.models, choice.shares))
    run_case = partial(_run_case, choice=choice, data=data, path=path)
    # A process is ended after some cases, since vLLM's caches grow. An executor of
    # `concurrent.futures` may wait for ever for the next one (python/cpython#115634).
    with get_context("spawn").Pool(jobs, maxtasksperchild=8) as pool:
        for rows in pool.imap_unordered(run_case, cases):
            yield from rows
    order = {(name, model, share_text(share)): at for at, (name, model, share) in enumerate(cases)}
    record = Record(path)
    # Rows of other loads stay; rows of ours that other code made go.
    code = code_of("tools/replay")
    current = [r for r in record.rows.values() if r["code"] == code or r["manager"] == "vllm"]
    record.keep(sorted(current, key=lambda r: order.get((r["load"], r["model"], r["share"]), -1)))


def _run_case(case: tuple[str, str, float], *, choice: Choice, data: Path, path: Path) -> list[Row]:
    name, model, share = case
    trace = _trace(name, data, choice.limit)
    unbounded = _unbounded(name, model, data, choice.limit)
    cache, record = unbounded.at(share), Record(path)
    config = engine(choice.running)
    limits = request_limits((ManagerName.RUST, ManagerName.VLLM), cache, config)
    refused: list[Refusal] = []
    while True:
        rows: list[Row] = []
        for variant in _taken(choice.variants, cache):
            left_out = find_too_large(
                trace, limits, num_speculative_tokens=0, reject=True, refused=refused
            )
            digest = _digest(trace, variant, cache, config, left_out.requests)
            if digest not in record.rows:
                try:
                    result = _replay(
                        trace, variant, cache, config, unbounded, limits=limits, refused=refused
                    )
                except RefusedRequestError as error:
                    refused.append(Refusal(manager=variant.manager, request=error.request))
                    break
                about: Row = {"load": name, "model": model, "share": share_text(share)}
                if choice.running != RUNNING:
                    about["running"] = choice.running
                record.add({**about, **_row(result, variant, cache), "digest": digest})
            rows.append(record.rows[digest])
        else:
            return rows


def _taken(names: Sequence[str], cache: Cache) -> Iterator[Variant]:
    """Yield the variants that a cache's model takes."""
    assert cache.model is not None
    assert cache.deployment is not None
    taken = vllm_settings(cache.model, cache.deployment)
    for variant in map(VARIANTS.__getitem__, names):
        if variant.manager is ManagerName.RUST or variant.vllm in taken:
            yield variant


@remember
def _trace(name: str, data: Path, limit: int | None) -> Trace:
    load = LOADS[name]
    num_requests = min(limit or load.limit, load.limit)
    if load.file is None:
        return generate(name, 0, num_requests)
    return read_trace(data / "traces" / load.file).head(num_requests)


@remember
def _unbounded(name: str, model: str, data: Path, limit: int | None) -> SharedCache:
    deployment = Deployment(
        max_num_batched_tokens=ENGINE.max_num_batched_tokens,
        in_flight_batches=1,
        block_size=LOADS[name].grain,
        card=CARD,
    )
    return SharedCache(_trace(name, data, limit), model_cache(model, 1024 * GIB, deployment))


def _replay(
    trace: Trace,
    variant: Variant,
    cache: Cache,
    config: EngineConfig,
    unbounded: SharedCache,
    *,
    limits: Sequence[RequestLimit],
    refused: Sequence[Refusal],
) -> Result:
    result, _ = replay(
        trace,
        manager_name=variant.manager,
        cache=cache,
        config=config,
        rust=variant.options(trace, cache, unbounded.prefixes),
        vllm=variant.vllm,
        sharing=unbounded.sharing,
        prefixes=unbounded.prefixes,
        limits=limits,
        refused=refused,
    )
    return result


def _row(result: Result, variant: Variant, cache: Cache) -> Row:
    names = (
        "manager",
        "requests",
        "rejected_requests",
        "prompt_tokens",
        "hit_rate",
        "sequential_hit_rate",
        "recompute_flops_saved",
        "preemptions",
        "checkpoints",
        "places",
        "limit_unseen",
        "limit_no_checkpoint",
        "limit_attention_evicted",
        "wall_seconds",
    )
    figures = msgspec.to_builtins(result)
    about = {"variant": variant.name, "gib": round(result.memory_bytes / GIB, 2)}
    return {
        **about,
        "code": _code(variant.manager, cache),
        **{name: figures[name] for name in names},
    }


def _code(manager: ManagerName, cache: Cache) -> str:
    """Name the code that a manager's rows depend on."""
    if manager is ManagerName.VLLM:
        assert cache.model is not None
        assert cache.deployment is not None
        return stock_code(cache.model, cache.deployment)
    return code_of("tools/replay")


def _digest(
    trace: Trace,
    variant: Variant,
    cache: Cache,
    config: EngineConfig,
    left_out: Iterable[int],
) -> str:
    model = cache.model.name if cache.model else ""
    facts = (variant.name, _code(variant.manager, cache), model, cache.memory_bytes, config)
    digest = hashlib.sha256(repr((facts, sorted(left_out))).encode())
    columns = (trace.arrival, trace.follows, trace.prompt_tokens, trace.output_tokens)
    for column in (*columns, trace.span_start, trace.span_first, trace.span_count):
        digest.update(column.tobytes())
    return digest.hexdigest()[:24]


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Write the hits of each case: ours, vLLM's best, and what attention alone allows."""
    for (load, model), found in _by(rows, "load", "model"):
        yield f"{load}, {model}: attention alone {_bound(found[0]):.1%}"
        for (share,), case in _by(found, "share"):
            ours = ", ".join(
                f"{row['variant'].removeprefix('rust ')} {row['hit_rate']:.1%}"
                for row in case
                if row["manager"] == "rust"
            )
            theirs = f"; vLLM {_theirs(case):.1%}" if _has_vllm(case) else ""
            yield f"  {share:>9} {case[0]['gib']:>9,.1f} GiB: {ours}{theirs}"


def summary(rows: Iterable[Row]) -> Iterator[str]:
    """Write a table of models: in how many cases the default hits more than vLLM's best, or less.

    Cases that differ by less than ``ALIKE`` count as equal. Points are percent of prompt tokens.
    """
    yield "| model | cases | more | equal | less | mean difference | least |"
    yield "|---|---|---|---|---|---|---|"
    for (model,), found in _by(sorted(rows, key=itemgetter("model")), "model"):
        gains = [
            row["hit_rate"] - _theirs(case)
            for _, case in _by(found, "load", "share")
            for row in case
            if row["variant"] == OURS[0].name and _has_vllm(case)
        ]
        if not gains:
            continue
        more, less = sum(it >= ALIKE for it in gains), sum(it <= -ALIKE for it in gains)
        counts = f"{len(gains)} | {more} | {len(gains) - more - less} | {less}"
        yield f"| {model} | {counts} | {100 * fmean(gains):+.1f} | {100 * min(gains):+.2f} |"


def check(rows: list[Row]) -> Iterator[str]:
    """Name the sizes at which we hit less than vLLM, or less than we should."""
    for (load, model, share), case in _by(rows, "load", "model", "share"):
        title = f"{load}, {model}, {share}"
        own = {row["variant"]: row for row in case if row["manager"] == "rust"}
        fixed = own.get(FIXED.name)
        row = own.get(OURS[0].name)
        if row is None:
            continue
        if row["hit_rate"] < _theirs(case):
            hits, theirs = row["hit_rate"], _theirs(case)
            yield f"{title}: hits {hits:.2%}, vLLM's best {theirs:.2%}"
        if fixed and row["recompute_flops_saved"] < fixed["recompute_flops_saved"]:
            yield f"{title}: saves fewer FLOPs than {FIXED.name}"
        target = OF_BOUND.get(load, OTHERS_OF_BOUND) * _bound(row)
        if share == share_text(math.inf) and row["hit_rate"] < target:
            yield f"{title}: hits {row['hit_rate']:.2%}, not {target:.2%}"


def _bound(row: Row) -> float:
    return float(row["sequential_hit_rate"] or 0.0)


def _has_vllm(case: Sequence[Row]) -> bool:
    return any(row["manager"] == "vllm" for row in case)


def _theirs(case: Sequence[Row]) -> float:
    """Return the best of vLLM's hit rates; 0 if it did not run."""
    rates = (float(row["hit_rate"]) for row in case if row["manager"] == "vllm")
    return max(rates, default=0.0)


def _by(rows: Iterable[Row], *names: str) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    for key, group in groupby(rows, key=lambda row: tuple(row[name] for name in names)):
        yield key, list(group)
