"""The built-in table of models.

``table.json`` holds, under each name, the ``config.json`` fields that the planner reads, and how
far they were verified. ``like`` takes the fields of another entry; ``counts`` gives the number of
layers of each kind where their order is not known: they are then spread evenly.
"""

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model.architecture.common import spread


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Billions of parameters that a publisher names, ``experts`` in another format among them.

    ``bits`` are those of experts or, where there are none, of all weights but the embeddings.
    """

    billions: float
    experts: float = 0.0
    bits: float | None = None


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row; ``published`` where a model's name does not say its size or is short."""

    status: Literal["verified", "partly verified", "unverified"]
    config: dict[str, object] | None = None
    like: str | None = None
    counts: dict[str, int] | None = None
    notes: tuple[str, ...] = ()
    published: Published | None = None


@cache
def entries() -> dict[str, Entry]:
    """All rows by name."""
    text = files("hybrid_blocks.model").joinpath("table.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Entry])


# Endings of names with other weights over the same layers. Quantised weights are not among
# them: their configuration may choose another type for the cache.
_OTHER_WEIGHTS: Final = ("-instruct", "-thinking", "-chat", "-base", "-base-8k", "-it", "-bf16")
_MAKER: Final = "nvidia-"

_HUB_FOLDER: Final = re.compile(r"models--[^/]+--([^/]+)/snapshots/")
"""Where a hub's cache keeps a model."""


def find(name: str) -> tuple[str, Entry]:
    """Row of a name, in any case and as a model hub has it.

    ``nvidia/NVIDIA-Nemotron-Nano-9B-v2`` is ``Nemotron-Nano-9B-v2``. If no row has the whole name,
    the search leaves out three parts: the owner before a slash, the maker, and an ending such as
    ``-Instruct``, ``-it`` or ``-BF16``.

    Raises:
        PlanError: no such name; says which names come near.
    """
    by_key = {known.lower(): known for known in entries()}
    in_hub = _HUB_FOLDER.search(name)
    key = (in_hub[1] if in_hub else name.rstrip("/").rsplit("/", 1)[-1]).lower()
    for alias in (key, key.removeprefix(_MAKER), _without_weights(key.removeprefix(_MAKER))):
        if alias in by_key:
            return by_key[alias], entries()[by_key[alias]]
    near = get_close_matches(key, by_key, n=3, cutoff=0.5)
    hint = f"; near it: {', '.join(by_key[other] for other in near)}" if near else ""
    raise PlanError(f"{name}: neither a file, a directory nor a built-in model{hint}")


def _without_weights(key: str) -> str:
    ending = next((ending for ending in _OTHER_WEIGHTS if key.endswith(ending)), "")
    return key.removesuffix(ending)


def fields(entry: Entry) -> tuple[dict[str, object], tuple[str, ...]]:
    """``config.json`` fields of a row, and what a reader of the plan should know about them."""
    source = entry if entry.like is None else entries()[entry.like]
    config = dict(source.config or {})
    notes = entry.notes
    if entry.counts:
        config["hybrid_override_pattern"] = "".join(spread(entry.counts))
        notes += ("the order of the layers is not known; they are spread evenly",)
    return config, notes
