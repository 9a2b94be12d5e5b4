"""Metrics that an engine shows on ``/metrics``, from the objects that fill it."""

import os
from pathlib import Path

import pytest
from hybrid_blocks import metrics as figures
from hybrid_blocks.metrics import OFFLOAD_COUNTERS, OFFLOAD_GAUGES, Sample
from hybrid_blocks.vllm.metrics import FOLDER_VARIABLE, EngineCollector, Publisher
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

MODEL = "granite-4.0-h-small"


def shown(
    folder: Path, level: str, steps: int = 1, *, engine: str = "0", offloads: bool = False
) -> str:
    """Return the text of an engine at a level after some steps; level ``off`` is vLLM alone."""
    labels = {"model_name": MODEL, "engine": engine}
    registry = CollectorRegistry()
    for name, value in {"running": 12, "waiting": 3}.items():
        gauge = Gauge(f"vllm:num_requests_{name}", "Requests.", list(labels), registry=registry)
        gauge.labels(**labels).set(value)
    counts = {"num_preemptions": 2 * steps, "generation_tokens": 1_500 * steps}
    counts |= {"prefix_cache_queries": 8_000 * steps, "prefix_cache_hits": 5_000 * steps}
    for name, count in counts.items():
        counter = Counter(f"vllm:{name}", "Counted.", list(labels), registry=registry)
        counter.labels(**labels).inc(count)
    if offloads:
        _offload(registry, labels, steps)
    if level != "off":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(FOLDER_VARIABLE, str(folder))
            reason = "a KV connector" if level == "manager" else ""
            info = figures.INFO.sample(
                1, version="0.1.0", vllm_version="0.33.0", level=level, reason=reason
            )
            samples = _natural(steps) if level == "natural" else _blocks(501, "")
            Publisher(labels, [info]).publish(lambda: samples, at_once=True)
        registry.register(EngineCollector(folder))
    text = generate_latest(registry).decode()
    (folder / f"{os.getpid()}.json").unlink(missing_ok=True)
    return text


def _blocks(count: int, pool: str) -> list[Sample]:
    states = {"live": count * 2 // 3, "cached": count // 4}
    states["free"] = count - sum(states.values())
    labels = {"pool": pool} if pool else {}
    return [figures.BLOCKS.sample(value, state=one, **labels) for one, value in states.items()]


def _natural(steps: int) -> list[Sample]:
    hits = dict.fromkeys(figures.ENDS, 0) | {"complete": 60, "unseen": 30, "no_checkpoint": 5}
    written = dict.fromkeys(figures.PLACES, 0) | {"prompt": 4, "followed": 21}
    dropped = dict.fromkeys(figures.DROPS, 0) | {"superseded": 12, "evicted": 3}
    reserved = dict.fromkeys(figures.PARTS, 0) | {"needed": 15 * 2**30, "cached": 2**30}
    owners = {"attention": 412, "states": 132, figures.FREE: 119}
    return [
        *(figures.SLABS.sample(count, owner=owner) for owner, count in owners.items()),
        *_blocks(412 * 37, "attention"),
        *_blocks(132, "states"),
        *(figures.RESERVED.sample(num_bytes, part=part) for part, num_bytes in reserved.items()),
        *(figures.HITS.sample(one * steps, ended_by=end) for end, one in hits.items()),
        *(figures.CHECKPOINTS_WRITTEN.sample(n * steps, place=it) for it, n in written.items()),
        *(figures.CHECKPOINTS_DROPPED.sample(n * steps, reason=it) for it, n in dropped.items()),
        figures.FORKS.sample(40 * steps),
    ]


def _offload(registry: CollectorRegistry, labels: dict[str, str], steps: int) -> None:
    counted = {"stored_chunks": 200, "loaded_chunks": 50, "evicted_chunks": 7}
    held = {"host_held_bytes": 3 * 2**30, "disk_bytes": 20 * 2**30, "disk_chunks": 6_000}
    for name, figure in OFFLOAD_COUNTERS.items():
        counter = Counter(figure.family, figure.documentation, list(labels), registry=registry)
        counter.labels(**labels).inc(counted.get(name, 0) * steps)
    for name, figure in OFFLOAD_GAUGES.items():
        gauge = Gauge(figure.name, figure.documentation, list(labels), registry=registry)
        gauge.labels(**labels).set(held.get(name, 0))
