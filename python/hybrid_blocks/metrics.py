"""Figures that an engine publishes, one metric each: ``metrics.toml``."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Final, Literal

import msgspec

from hybrid_blocks.tables import read_tables


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


_TABLE: Final = read_tables((files(__package__) / "metrics.toml").read_text())


def _figures(prefix: str) -> dict[str, Figure]:
    """Return the figures with a prefix by the rest of their names, without ``_total``."""
    return {
        name: Figure(f"{prefix}{name}{'_total' * (kind == 'counter')}", kind, text, tuple(labels))
        for name, (kind, text, *labels) in _TABLE[prefix].items()
    }


_ENGINE: Final = _figures("hybrid_blocks_")
INFO = _ENGINE["info"]
BLOCKS = _ENGINE["blocks"]
SLABS = _ENGINE["slabs"]
RESERVED = _ENGINE["reserved_bytes"]
SLAB_STEALS = _ENGINE["slab_steals"]
FORKS = _ENGINE["forks"]
CHECKPOINTS_WRITTEN = _ENGINE["checkpoints_written"]
CHECKPOINTS_DROPPED = _ENGINE["checkpoints_dropped"]
HITS = _ENGINE["hits"]
HITS_SHORTENED = _ENGINE["hits_shortened"]
HELD_SLABS = _ENGINE["held_slabs"]
HELD_REFUSED = _ENGINE["held_refused"]
STALLED_SLABS = _ENGINE["stalled_slabs"]
STALLED_READS = _ENGINE["stalled_reads"]
RECORD_DROPPED = _ENGINE["record_dropped"]

ENGINE: Final = tuple(_ENGINE.values())
"""All of them."""

PLACES: Final = ("prompt", "followed", "loaded", "kept")
"""Where a state was written: values of ``place``."""
DROPS: Final = ("superseded", "evicted", "given_up", "no_room")
"""Why a state was not kept: values of ``reason``."""
ENDS: Final = (
    *("complete", "unseen", "attention_evicted", "window_evicted", "no_checkpoint", "alignment"),
)
"""The ends of hits: values of ``ended_by``."""
PARTS: Final[dict[str, str]] = _TABLE["parts"]
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
_OFFLOAD: Final = _figures(OFFLOAD_PREFIX)
OFFLOAD_COUNTERS: Final = {name: it for name, it in _OFFLOAD.items() if it.kind == "counter"}
"""By the name between prefix and ``_total``."""
OFFLOAD_GAUGES: Final = {name: it for name, it in _OFFLOAD.items() if it.kind == "gauge"}
"""By the name after the prefix."""

OFFLOAD: Final = tuple(_OFFLOAD.values())
"""All of them."""


_SEVERAL: Final = _figures("hybrid_blocks_connector_")
SEVERAL_COUNTERS: Final = {name: it for name, it in _SEVERAL.items() if it.kind == "counter"}
"""By the name between prefix and ``_total``."""
SEVERAL_GAUGES: Final = {name: it for name, it in _SEVERAL.items() if it.kind == "gauge"}
"""By the name after the prefix."""

SEVERAL: Final = tuple(_SEVERAL.values())
"""All of them."""

_SHADOW: Final = _figures("hybrid_blocks_shadow_")
SHADOW_COUNTERS: Final = {name: it for name, it in _SHADOW.items() if it.kind == "counter"}
SHADOW_GAUGES: Final = {name: it for name, it in _SHADOW.items() if it.kind == "gauge"}
SHADOW: Final = tuple(_SHADOW.values())
"""All of them."""
