"""The bytes that ranks hold of a chunk: parts that tensor parallelism splits by head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["key_value", "replicated", "convolution", "recurrent", "opaque"]


class Part(NamedTuple):
    """Bytes ``[row][head][byte]``. Heads are those of the whole model; a rank holds some of them.

    A part that is ``replicated`` has one head, which all ranks hold. One that is ``opaque`` has a
    structure that is not known, and a head for each rank.
    """

    kind: Kind
    rows: int
    num_heads: int
    bytes_per_head: int
    is_float32: bool = False

    def rank_bytes(self, tp_size: int) -> int | None:
        """Bytes that a rank holds; ``None`` if ``tp_size`` ranks cannot share the heads."""
        own = heads_of_rank(self.num_heads, tp_size)
        return None if own is None else self.rows * own * self.bytes_per_head


def heads_of_rank(num_heads: int, tp_size: int) -> int | None:
    """Heads of each rank: an even share, or one that several ranks hold; ``None`` if neither."""
    if num_heads % tp_size == 0:
        return num_heads // tp_size
    return 1 if tp_size % num_heads == 0 else None


def opaque(rank_bytes: int, num_ranks: int) -> Part:
    """A share of each rank, with unknown structure."""
    return Part("opaque", 1, num_ranks, rank_bytes)


@dataclass(frozen=True)
class Structure:
    """The parts of a group's chunk, layer by layer. Most layers are alike, so ``kinds`` are few.

    ``layers`` has the number of each layer's kind and ``depths`` where it stands in the model.
    """

    kinds: list[list[Part]]
    layers: list[int]
    depths: list[list[int]]

    @classmethod
    def of(cls, layers: Sequence[tuple[str, list[Part]]]) -> "Structure":
        """Build the structure of a chunk from the parts of its layers, by name."""
        kinds: list[list[Part]] = []
        for _, parts in layers:
            if parts not in kinds:
                kinds.append(parts)
        return cls(
            kinds=kinds,
            layers=[kinds.index(parts) for _, parts in layers],
            depths=[depth(name) for name, _ in layers],
        )

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Structure":
        """Read a structure that ``dataclasses.asdict`` turned into JSON."""
        kinds = [[Part(*part) for part in parts] for parts in value["kinds"]]
        return cls(kinds, value["layers"], value["depths"])

    def parts(self) -> list[Part]:
        """All parts in the order in which they lie in a chunk."""
        return [part for layer in self.layers for part in self.kinds[layer]]


def depth(name: str) -> list[int]:
    """The numbers in a layer's name: they say where it stands, whatever the modules are called."""
    return [int(word) for word in name.split(".") if word.isdecimal()]
