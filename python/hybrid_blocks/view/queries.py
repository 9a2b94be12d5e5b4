"""Queries for a board during a rollout, with what to expect of each."""

import msgspec

from hybrid_blocks.metrics import engine

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
FOUND = "vllm:prefix_cache_hits_total"
ASKED = "vllm:prefix_cache_queries_total"


class Query(msgspec.Struct, frozen=True):
    """One query of Prometheus: what it shows, and what to expect."""

    shows: str
    text: str
    expect: str


def queries(level: str, total: int, running: int, length: int) -> tuple[Query, ...]:
    """Return the queries for an engine of a level.

    Its pool has ``total`` slabs or blocks and holds ``running`` requests of ``length`` tokens.
    """
    labels = ", ".join(("instance", "model_name", "engine", *engine.INFO.labels))
    unit = "slabs" if level == "natural" else "blocks"
    owned = engine.SLABS.name if level == "natural" else engine.BLOCKS.name
    by = "owner" if level == "natural" else "pool, state"
    first = (
        Query("level", f"max by ({labels}) ({engine.INFO.name})", f'level="{level}"'),
        Query(
            "running",
            f"sum({RUNNING})",
            f"up to {running:,} for each engine under requests of {length:,} tokens",
        ),
        Query("waiting", f"sum({WAITING})", "less than before, under the same load"),
        Query(
            "found",
            f"{_rate(FOUND)} / ({_rate(ASKED)} > 0)",
            "no less than before, under the same prompts",
        ),
        Query("preemptions", _rate(PREEMPTIONS), "no more than before"),
        Query(unit, f"sum by ({by}) ({owned})", f"{total - 1:,} in all for each engine"),
    )
    if level != "natural":
        return first
    return (
        *first,
        Query(
            "hits by their end",
            _rate(engine.HITS.name, "ended_by"),
            "mostly complete and unseen; much no_checkpoint calls for a replay of your traffic",
        ),
        Query(
            "checkpoints dropped",
            _rate(engine.CHECKPOINTS_DROPPED.name, "reason"),
            "much evicted or no_room says that the memory is too small",
        ),
    )


def _rate(name: str, by: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({name}[5m]))"
