"""Figures that an engine publishes: one metric each, by the part that counts it."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """A metric's full name, its kind, its own labels and what it says.

    Each figure also has vLLM's labels ``model_name`` and ``engine``.
    """

    name: str
    kind: Literal["counter", "gauge"]
    documentation: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name that clients of Prometheus declare: theirs add ``_total`` to counters."""
        return self.name.removesuffix("_total")

    def sample(self, value: float, **labels: str) -> "Sample":
        """Return a value of this figure.

        Raises ``ValueError`` for labels that the figure does not have.
        """
        if not labels.keys() <= set(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(labels)}")
        return Sample(self.family, self.documentation, self.kind, labels, value)


class Sample(msgspec.Struct, frozen=True):
    """One value of a figure, with the labels that tell it from others of the name."""

    family: str
    documentation: str
    kind: Literal["counter", "gauge"]
    labels: dict[str, str]
    value: float


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
RESERVED: Final = Figure(
    "hybrid_blocks_reserved_bytes",
    "gauge",
    "Bytes of slabs in which a block has an owner, by what they are held for.",
    ("part",),
)
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
RECORD_DROPPED: Final = Figure(
    "hybrid_blocks_record_dropped_total",
    "counter",
    "Finished requests that the record lacks: the file was slower than the engine, or failed.",
)

ENGINE: Final = (
    *(INFO, BLOCKS, SLABS, RESERVED, SLAB_STEALS, FORKS),
    *(CHECKPOINTS_WRITTEN, CHECKPOINTS_DROPPED, HITS, HITS_SHORTENED),
    *(HELD_SLABS, HELD_REFUSED, STALLED_SLABS, STALLED_READS, RECORD_DROPPED),
)
"""All of them."""

PLACES: Final = ("prompt", "followed", "loaded", "kept")
"""Where a state was written: values of ``place``."""
DROPS: Final = ("superseded", "evicted", "given_up", "no_room")
"""Why a state was not kept: values of ``reason``."""
ENDS: Final = (
    *("complete", "unseen", "attention_evicted", "window_evicted", "no_checkpoint", "alignment"),
)
"""The ends of hits: values of ``ended_by``."""
PARTS: Final = {
    "needed": "Computed tokens and states that a request still reads.",
    "unfilled": "Room in requests' blocks without such a token: block ends, drafts, window starts.",
    "copies": "Blocks that only copies under way own.",
    "transfers": "Blocks that outlive their request, such as those that a connector still reads.",
    "cached": "Cached blocks in slabs that also hold owned ones; only that pool can take them.",
    "free": "Free blocks in such slabs.",
    "padding": "Bytes that no block uses, since pools cut slabs of one size.",
}
"""The uses of reserved bytes: values of ``part``, with their meaning."""
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


OFFLOAD_PREFIX: Final = "hybrid_blocks_offload_"
_OFFLOAD_COUNTERS: Final = {
    "lookups": "Look-ups of requests; each is one call for all groups and tiers.",
    "stored_chunks": "Chunks copied from the device to host memory.",
    "loaded_chunks": "Chunks copied from host memory to the device.",
    "evicted_chunks": "Chunks whose place in host memory was taken.",
    "stores_refused": "Stores that found no room in host memory beside what transfers use.",
    "promoted_bytes": "Bytes read from disk and objects to host memory.",
    "promotions_refused": "Reads from disk and objects that found no room in host memory at first.",
    "passed_by_tokens": "Tokens that disk and objects hold and that were sooner computed.",
}
_OFFLOAD_GAUGES: Final = {
    "host_live_bytes": "Bytes of host memory that states, and the attention they need, take.",
    "host_held_bytes": "Bytes of host memory whose chunks can be found.",
    "host_units": "Lengths in host memory from which a request can resume.",
    "disk_bytes": "Bytes of segment files, also those that go first.",
    "disk_chunks": "Chunks on disk.",
    "object_chunks": "Chunks that the store of objects is known to hold.",
    "object_uploads": "Chunks that wait for their upload to the store of objects.",
    "disk_refused": "1 while the disk is not used: a write failed, or it does not answer.",
    "object_refused": "1 while the store of objects is not used: it refused, or does not answer.",
    "disk_read_bytes_per_second": "Rate of the last reads from the disk, waiting too; 0 at first.",
    "disk_read_latency_seconds": "Time of the last reads from the disk, without their bytes' time.",
    "object_read_bytes_per_second": "Rate of the last reads of objects, waiting too; 0 at first.",
    "object_read_latency_seconds": "Time of the last reads of objects, without their bytes' time.",
    "prompt_tokens_per_second": "Rate at which prompts are computed; 0 while it is not known.",
}

OFFLOAD_COUNTERS: Final = {
    name: Figure(f"{OFFLOAD_PREFIX}{name}_total", "counter", text)
    for name, text in _OFFLOAD_COUNTERS.items()
}
"""By the name between prefix and ``_total``."""
OFFLOAD_GAUGES: Final = {
    name: Figure(OFFLOAD_PREFIX + name, "gauge", text) for name, text in _OFFLOAD_GAUGES.items()
}
"""By the name after the prefix."""

OFFLOAD: Final = (*OFFLOAD_COUNTERS.values(), *OFFLOAD_GAUGES.values())
"""All of them."""


SEVERAL_PREFIX: Final = "hybrid_blocks_connector_"
_LABELS: Final = ("connector",)
_SEVERAL_COUNTERS: Final = {
    "loads": "Loads that this connector was chosen for.",
    "loaded_tokens": "Tokens of these loads.",
    "failed_loads": "Loads of it that failed; their requests compute the tokens.",
    "passed_by": "Offers of it that were not taken, as the request resumes sooner otherwise.",
    "not_awaited": "Look-ups of it that were not waited for any longer.",
    "wrong_answers": "Answers that no request could load, such as more tokens than a prompt has.",
    "errors": "Errors that it raised instead of an answer.",
}
_SEVERAL_GAUGES: Final = {
    "bytes_per_second": "Rate of its last loads, waiting too; 0 at first.",
    "latency_seconds": "Time of its last loads, without their bytes' time.",
}

SEVERAL_COUNTERS: Final = {
    name: Figure(f"{SEVERAL_PREFIX}{name}_total", "counter", text, _LABELS)
    for name, text in _SEVERAL_COUNTERS.items()
}
"""By the name between prefix and ``_total``."""
SEVERAL_GAUGES: Final = {
    name: Figure(SEVERAL_PREFIX + name, "gauge", text, _LABELS)
    for name, text in _SEVERAL_GAUGES.items()
}
"""By the name after the prefix."""

SEVERAL: Final = (*SEVERAL_COUNTERS.values(), *SEVERAL_GAUGES.values())
"""All of them."""
