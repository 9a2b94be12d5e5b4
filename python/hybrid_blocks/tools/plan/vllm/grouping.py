"""How vLLM cuts layers into groups that share a block table.

Follows ``get_kv_cache_groups`` in ``vllm/v1/core/kv_cache_planning.py`` (0.33) for layer-outermost
cache layouts, the default on CUDA.
"""

from typing import Final

import msgspec

from hybrid_blocks.arithmetic import ceil_div, round_up
from hybrid_blocks.model import Layer, PlanError
from hybrid_blocks.model.layer import FullAttention, LatentAttention
from hybrid_blocks.tools.plan.vllm.spec import RING, Spec

_NEARLY_EQUAL: Final = 1.5
"""Kinds whose layer counts differ by less than this factor are padded to the larger count."""


class Member(msgspec.Struct, frozen=True):
    """A layer and its spec."""

    layer: Layer
    spec: Spec


class VllmGroup(msgspec.Struct, frozen=True):
    """Members that share a block table, and empty layers that pad them to the common number."""

    members: tuple[Member, ...]
    padding_layers: int = 0

    @property
    def spec(self) -> Spec:
        """Spec of the first member; all need the same number of blocks."""
        return self.members[0].spec

    @property
    def page_bytes(self) -> int:
        """Bytes of the pages of all members: a block without padding layers."""
        return sum(member.spec.page_bytes for member in self.members)


def group(members: tuple[Member, ...]) -> tuple[VllmGroup, ...]:
    """Cut the layers of a whole model, all pipeline stages together, into groups."""
    if _one_table(members):
        return (VllmGroup(members),)
    return _equal_groups(_unify_pages(members))


def _one_table(members: tuple[Member, ...]) -> bool:
    """Whether all layers need the same number of blocks of the same tokens."""
    first = members[0].spec
    return all(
        _type(spec) == _type(first)
        and spec.block_tokens == first.block_tokens
        and spec.window == first.window
        and (spec.kind != "mamba" or spec.page_bytes == first.page_bytes)
        for spec in (member.spec for member in members)
    )


def _type(spec: Spec) -> str:
    return FullAttention.kind if spec.kind == LatentAttention.kind else spec.kind


def _unify_pages(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Give all layers the largest page: by more tokens a block where whole, else by padding."""
    largest = max(member.spec.page_bytes for member in members)
    return tuple(Member(member.layer, _fit_page(member.spec, largest)) for member in members)


def _fit_page(spec: Spec, page_bytes: int) -> Spec:
    if spec.page_bytes == page_bytes:
        return spec
    if spec.kind == "mamba":
        return spec.with_page(page_bytes)
    if page_bytes % spec.page_bytes == 0:
        return spec.with_block(spec.block_tokens * (page_bytes // spec.page_bytes))
    if spec.kind == LatentAttention.kind:
        raise PlanError(
            f"vLLM cannot pad a latent-attention page of {spec.page_bytes} bytes to {page_bytes}"
        )
    return spec.with_page(page_bytes)


def _equal_groups(members: tuple[Member, ...]) -> tuple[VllmGroup, ...]:
    """Cut each kind into groups of the same number of layers.

    The number is that of the rarest kind, or of the commonest where they are nearly equal. Layers
    are dealt out in turn, so that pipeline stages keep the ratio.
    """
    kinds: dict[Spec, list[Member]] = {}
    for member in members:
        kinds.setdefault(member.spec, []).append(member)
    counts = [len(kind) for kind in kinds.values()]
    size = max(counts) if max(counts) < min(counts) * _NEARLY_EQUAL else min(counts)
    groups = []
    for kind in kinds.values():
        number = -(-len(kind) // size)
        for index in range(number):
            dealt = tuple(kind[index::number])
            groups.append(VllmGroup(dealt, size - len(dealt)))
    return tuple(groups)


_STATES: Final = ("mamba", RING)


def group_packed(members: tuple[Member, ...]) -> tuple[VllmGroup, ...]:
    """Cut the layers of sparse attention into groups; its index needs a block-outermost layout.

    Pages keep their sizes, and a block is as large as the largest group's pages. Follows
    ``_get_packed_kv_cache_groups``.

    A full layer with its index is one member, and stands for two pages; so all full layers stay
    together. Groups of the other kinds have as many layers as leave the fewest places empty. States
    are cut further where a group would not fit into the block of the full layers.
    """
    kinds: dict[Spec, list[Member]] = {}
    for member in members:
        kinds.setdefault(member.spec, []).append(member)
    whole = max(len(kind) for spec, kind in kinds.items() if spec.kind not in _STATES)
    size = _least_padding([len(kind) for kind in kinds.values()], whole)
    block_bytes = max(
        spec.page_bytes * (1 if spec.kind in _STATES else len(kind)) for spec, kind in kinds.items()
    )
    groups = []
    for spec, kind in kinds.items():
        number = ceil_div(len(kind), size)
        if spec.kind in _STATES:
            number = max(number, ceil_div(len(kind), max(block_bytes // spec.page_bytes, 1)))
        groups += [VllmGroup(tuple(kind[index::number])) for index in range(number)]
    return tuple(groups)


def _least_padding(counts: list[int], fewest: int) -> int:
    """Return the size, from ``fewest`` on, to whose multiples the counts are nearest."""
    sizes = range(fewest, max(counts) + 1)
    return min(sizes, key=lambda size: (sum(round_up(n, size) - n for n in counts), -size))
