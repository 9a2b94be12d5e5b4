"""Figures of an engine's block manager."""

from collections.abc import Sequence
from typing import Final

from hybrid_blocks.metrics.figure import Figure

INFO: Final = Figure(
    "hybrid_blocks_info",
    "gauge",
    "1; the labels name the version, the level that runs, and why no higher one does.",
    ("version", "vllm_version", "level", "reason"),
)
BLOCKS: Final = Figure(
    "hybrid_blocks_blocks", "gauge", "Blocks by state; by pool at level natural.", ("pool", "state")
)
SLABS: Final = Figure("hybrid_blocks_slabs", "gauge", "Slabs by owner.", ("owner",))
SLAB_STEALS: Final = Figure(
    "hybrid_blocks_slab_steals_total", "counter", "Slabs that a pool took from another."
)
FORKS: Final = Figure(
    "hybrid_blocks_forks_total", "counter", "States copied for requests that resumed from them."
)
CHECKPOINTS_WRITTEN: Final = Figure(
    "hybrid_blocks_checkpoints_written_total", "counter", "States kept, by place.", ("place",)
)
CHECKPOINTS_DROPPED: Final = Figure(
    "hybrid_blocks_checkpoints_dropped_total", "counter", "States not kept, by reason.", ("reason",)
)
HITS: Final = Figure(
    "hybrid_blocks_hits_total", "counter", "Admissions by what ended their hits.", ("ended_by",)
)
HITS_SHORTENED: Final = Figure(
    "hybrid_blocks_hits_shortened_total", "counter", "Hits too scattered to resume from."
)
HELD_SLABS: Final = Figure(
    "hybrid_blocks_held_slabs",
    "gauge",
    "Slabs of prompts that another engine has still to read, at most; HybridNixlConnector only.",
)
HELD_REFUSED: Final = Figure(
    "hybrid_blocks_held_refused_total",
    "counter",
    "Prompts that found no room to wait for their reader, which computes them itself.",
)
STALLED_SLABS: Final = Figure(
    "hybrid_blocks_stalled_slabs",
    "gauge",
    "Slabs kept from others, as a read that was given up may still write them.",
)
STALLED_READS: Final = Figure(
    "hybrid_blocks_stalled_reads_total",
    "counter",
    "Requests that went on without what they read: the other engine did not answer in time.",
)

ENGINE: Final = (
    *(INFO, BLOCKS, SLABS, SLAB_STEALS, FORKS),
    *(CHECKPOINTS_WRITTEN, CHECKPOINTS_DROPPED, HITS, HITS_SHORTENED),
    *(HELD_SLABS, HELD_REFUSED, STALLED_SLABS, STALLED_READS),
)
"""All of them."""

PLACES: Final = ("prompt", "followed", "loaded", "kept")
"""Where a state was written: values of ``place``."""
DROPS: Final = ("superseded", "evicted", "given_up", "no_room")
"""Why a state was not kept: values of ``reason``."""
ENDS: Final = (
    *("complete", "unseen", "attention_evicted", "window_evicted", "no_checkpoint", "alignment"),
)
"""What ended a hit: values of ``ended_by``."""
FREE: Final = "free"
"""The owner of slabs that no pool owns."""


def pool_names(num_pools: int, pools: Sequence[int], are_states: Sequence[bool]) -> tuple[str, ...]:
    """Return the name of each pool, given each group's pool and whether it holds states.

    A pool that no group draws from has checkpoints in another format. A second pool of a kind is
    numbered: ``attention``, ``attention_2``.
    """
    names = {
        frozenset(): "checkpoints",
        frozenset({False}): "attention",
        frozenset({True}): "states",
        frozenset({False, True}): "attention_and_states",
    }
    kinds: list[str] = []
    for pool in range(num_pools):
        held = {state for group, state in zip(pools, are_states, strict=True) if group == pool}
        kinds.append(names[frozenset(held)])
    counts = [kinds[: pool + 1].count(kind) for pool, kind in enumerate(kinds)]
    return tuple(
        kind if count == 1 else f"{kind}_{count}" for kind, count in zip(kinds, counts, strict=True)
    )
