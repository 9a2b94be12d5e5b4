"""How the caches of layers share one arena of slabs, in a form that vLLM's workers can read.

Attention keeps its own small block. A recurrent state takes a whole slab, so a state slot's id is
its slab's number; state layers are split into as many groups as pay.

A slab is cut into ``num_regions`` equal parts. A block has one page of each of its layers:

    1 region    The pages of a block lie one after the other.
    n regions   Layer i has its pages in region i modulo n, and region r of all slabs is one run of
                memory. A layer that is alone in its region has dense blocks.

Kernels for latent attention may take only dense blocks, so latent layers get a region each. All
others take one region: nothing is left empty where layer counts do not divide, and one copy moves
a slab.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

import msgspec

from hybrid_blocks.arithmetic import ceil_div, round_up
from hybrid_blocks.geometry import slab
from hybrid_blocks.model.kind import GroupKind

TYPICAL_LENGTH: Final = 2048
"""Tokens of the request by whose bytes the padding of each group is weighed."""

TYPICAL_CHECKPOINTS: Final = 2
"""Checkpoints of that request: one near the end of its prompt, one that follows its answer."""

MAX_GROUPS: Final = 8
"""Most groups that splitting the state layers may lead to."""

GROUP_COST: Final = 0.0005
"""A group more costs a block table and a row of kernel metadata: this share of memory at most."""


class CachedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer, as far as the layout needs it.

    Layers of one ``identity`` behave alike and have pages of one size; they may share a group. A
    page holds ``block_tokens`` tokens, or one state. A request takes ``slots`` states of a layer
    for its whole life; None for attention. Blocks of a ``dense`` layer have nothing between them.
    ``stage`` is the pipeline stage that holds the layer. ``kept_bytes`` are those of a state in a
    checkpoint, where that has another format.
    """

    name: Hashable
    identity: Hashable
    family: str
    kind: GroupKind
    page_bytes: int
    block_tokens: int
    slots: int | None = None
    dense: bool = False
    stage: int = 0
    kept_bytes: int | None = None

    @property
    def place_bytes(self) -> int:
        """Room of a page: pages start aligned."""
        return round_up(self.page_bytes, slab.STRIDE_ALIGNMENT)

    @property
    def kept_place_bytes(self) -> int:
        """Room of a page in a checkpoint that has another format."""
        return round_up(self.kept_bytes or 0, slab.STRIDE_ALIGNMENT)


class LayerGroup(msgspec.Struct, frozen=True):
    """Layers of one identity that share a block table."""

    name: str
    layers: tuple[CachedLayer, ...]

    @property
    def is_state(self) -> bool:
        """Whether blocks are states."""
        return self.layers[0].slots is not None

    def widest(self) -> tuple[CachedLayer, ...]:
        """Layers on the pipeline stage that holds most of them: all stages use one block table."""
        counts = Counter(layer.stage for layer in self.layers)
        stage = max(counts, key=lambda stage: counts[stage])
        return tuple(layer for layer in self.layers if layer.stage == stage)

    def layers_per_region(self, num_regions: int) -> int:
        """Most layers of a stage that have their pages in one region."""
        return ceil_div(len(self.widest()), num_regions)


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Groups, and how slabs are cut. Groups whose slabs are cut alike share a pool."""

    groups: tuple[LayerGroup, ...]
    num_regions: int
    slab_bytes: int
    blocks_per_slab: tuple[int, ...]
    """Blocks of a slab, by group."""
    kept_per_slab: tuple[int | None, ...]
    """Checkpoints of a slab, by group, where they have another format than running states."""

    @property
    def cuts(self) -> tuple[int, ...]:
        """Blocks of a slab, by pool."""
        return tuple(sorted(set(self.blocks_per_slab), reverse=True))

    @property
    def pools(self) -> tuple[int, ...]:
        """Pool of each group."""
        return tuple(self.cuts.index(cut) for cut in self.blocks_per_slab)

    @property
    def kept_cuts(self) -> tuple[int, ...]:
        """Checkpoints of a slab, by pool of them."""
        cuts = {cut for cut in self.kept_per_slab if cut is not None}
        return tuple(sorted(cuts, reverse=True))

    @property
    def kept_pools(self) -> tuple[int | None, ...]:
        """Pool of each group's checkpoints, behind those of blocks."""
        cuts = self.kept_cuts
        return tuple(
            None if cut is None else len(self.cuts) + cuts.index(cut) for cut in self.kept_per_slab
        )


def lay_out(layers: Sequence[CachedLayer]) -> Layout:
    """Choose groups and slab for layers in their order; the memory has no part in it.

    Raises:
        PlanError: no slab fits blocks that must be dense.
    """
    families: dict[Hashable, list[CachedLayer]] = {}
    for layer in layers:
        families.setdefault(layer.identity, []).append(layer)
    whole = [LayerGroup(members[0].family, tuple(members)) for members in families.values()]
    best = min(
        (_choose(groups) for groups in _splits(whole)),
        key=lambda chosen: chosen[1].cost + GROUP_COST * len(chosen[0].groups),
    )
    return best[0]


def cut_slabs(groups: Sequence[LayerGroup]) -> Layout:
    """Choose the slab for groups that stand; the same as in the layout that they come from.

    Raises:
        PlanError: no slab fits blocks that must be dense.
    """
    return _choose(groups)[0]


def _choose(groups: Sequence[LayerGroup]) -> tuple[Layout, slab.Slab]:
    num_regions = max((len(group.widest()) for group in groups if group.layers[0].dense), default=1)
    kept = [group for group in groups if group.layers[0].kept_bytes is not None]
    demands = [_demand(group, num_regions) for group in groups]
    demands += [_kept_demand(group, num_regions) for group in kept]
    chosen = slab.choose(tuple(demands), num_regions)
    kept_cuts = iter(chosen.blocks_per_slab[len(groups) :])
    layout = Layout(
        groups=tuple(groups),
        num_regions=num_regions,
        slab_bytes=chosen.slab_bytes,
        blocks_per_slab=chosen.blocks_per_slab[: len(groups)],
        kept_per_slab=tuple(next(kept_cuts) if group in kept else None for group in groups),
    )
    return layout, chosen


def _splits(families: list[LayerGroup]) -> Iterator[list[LayerGroup]]:
    """All ways to cut the state families so that no slot has more than n layers' states."""
    most = max((len(family.layers) for family in families if family.is_state), default=1)
    seen = 0
    for per_slot in range(most, 0, -1):
        groups = [
            group
            for family in families
            for group in (_cut(family, per_slot) if family.is_state else [family])
        ]
        if len(groups) > max(MAX_GROUPS, len(families)):
            return
        if len(groups) > seen:
            seen = len(groups)
            yield groups


def _cut(family: LayerGroup, per_slot: int) -> list[LayerGroup]:
    """Deal a state family's layers out evenly, so that each pipeline stage has its share."""
    count = ceil_div(len(family.layers), per_slot)
    if count == 1:
        return [family]
    return [
        LayerGroup(f"{family.name}.{index}", family.layers[index::count]) for index in range(count)
    ]


def _demand(group: LayerGroup, num_regions: int) -> slab.Demand:
    """Bytes of a block, and those of a request of TYPICAL_LENGTH tokens."""
    layers = group.widest()
    first = layers[0]
    content = sum(layer.page_bytes for layer in layers)
    if first.slots is not None:
        blocks = first.slots
    else:
        kind = first.kind
        tokens = kind.encoder_tokens or min(TYPICAL_LENGTH, kind.window or TYPICAL_LENGTH)
        blocks = ceil_div(tokens, first.block_tokens)
    return slab.Demand(
        block_bytes=num_regions * group.layers_per_region(num_regions) * first.place_bytes,
        content_bytes=content,
        typical_bytes=blocks * content,
        whole=group.is_state,
        dense=first.dense,
    )


def _kept_demand(group: LayerGroup, num_regions: int) -> slab.Demand:
    """Bytes of a checkpoint, and those that a typical request leaves."""
    pages = [layer.kept_bytes or 0 for layer in group.widest()]
    place = group.layers[0].kept_place_bytes
    return slab.Demand(
        block_bytes=num_regions * group.layers_per_region(num_regions) * place,
        content_bytes=sum(pages),
        typical_bytes=TYPICAL_CHECKPOINTS * sum(pages),
    )
