"""The natural plan: every group keeps its natural page size inside one arena."""

from collections.abc import Iterator
from typing import Final

import msgspec

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.model import Layer, Model, PlanError, Rank
from hybrid_blocks.model.kind import GroupKind, kind_of
from hybrid_blocks.model.layer import Cache, State
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.geometry import slab
from hybrid_blocks.plan.geometry.arena import ArenaPlan, GroupPlan
from hybrid_blocks.plan.geometry.pipeline import stages

BLOCK_TOKENS: Final = 16
"""Tokens of an attention block where ``--block-size`` does not say."""

LATENT_BLOCK_TOKENS: Final = 64
"""The same for latent attention: the one size that all its kernels take."""

TYPICAL_LENGTH: Final = 2048
"""Tokens of the request by whose bytes the padding of each group is weighed."""

MAX_GROUPS: Final = 8
"""Most groups that splitting the state layers may lead to."""

GROUP_COST: Final = 0.0005
"""What one more group (a block table, a row of kernel metadata) may cost, as a share of memory."""


class Family(msgspec.Struct, frozen=True):
    """Layers with the same behaviour over time."""

    kind: GroupKind
    name: str
    layers: tuple[Layer, ...]


class Pages(msgspec.Struct, frozen=True):
    """Page sizes of layers, and how pipeline stages share them out.

    All stages use one block table, so a block is as wide as the widest stage needs.
    """

    of_layer: dict[Layer, int]
    stages: tuple[frozenset[Layer], ...]

    def of(self, family: Family) -> tuple[int, ...]:
        """Pages of a family's layers on the stage where they take most."""
        held = ([layer for layer in family.layers if layer in stage] for stage in self.stages)
        return max((tuple(self.of_layer[layer] for layer in layers) for layers in held), key=sum)


def plan_natural(model: Model, memory_bytes: int, deployment: Deployment) -> ArenaPlan:
    """ArenaPlan of the arena for ``memory_bytes`` of free KV memory on each GPU.

    Groups need no equal numbers of layers. State layers are split into as many groups as pay: a
    smaller slot makes a smaller slab, so that memory moves between pools at a finer grain.

    Raises:
        PlanError: the memory does not hold the null slab and one more.

    """
    block_tokens = _block_tokens(model, deployment)
    rank = deployment.rank(model)
    layers = model.active_layers(deployment.num_speculative_tokens)
    pages = Pages(
        of_layer={layer: _page(layer, rank, block_tokens) for layer in layers},
        stages=tuple(map(frozenset, stages(model, layers, deployment.pp))),
    )
    best: tuple[float, list[Family], slab.Slab] | None = None
    for groups in _splits(_families(layers, rank)):
        chosen = slab.choose(
            [_demand(group, sum(pages.of(group)), deployment, block_tokens) for group in groups]
        )
        cost = chosen.cost + GROUP_COST * len(groups)
        if best is None or cost < best[0]:
            best = (cost, groups, chosen)
    if best is None:
        raise PlanError(f"{model.name}: no layer keeps a cache")
    _, groups, chosen = best
    num_slabs = memory_bytes // chosen.slab_bytes
    if num_slabs < 2:
        raise PlanError(
            f"{memory_bytes} bytes hold no slab of {chosen.slab_bytes} bytes beside the null slab"
        )
    cuts = sorted(set(chosen.blocks_per_slab), reverse=True)
    return ArenaPlan(
        groups=tuple(
            GroupPlan(
                name=group.name,
                kind=group.kind.name,
                layers=tuple(layer.depth for layer in group.layers),
                page_bytes=pages.of(group),
                block_tokens=block_tokens,
                block_bytes=sum(pages.of(group)),
                block_stride=chosen.slab_bytes // cut,
                blocks_per_slab=cut,
                pool=cuts.index(cut),
                window=group.kind.window,
                slots_per_request=_slots(group, deployment),
                encoder_tokens=group.kind.encoder_tokens,
            )
            for group, cut in zip(groups, chosen.blocks_per_slab, strict=True)
        ),
        slab_bytes=chosen.slab_bytes,
        num_slabs=num_slabs,
        hash_block_size=block_tokens,
        memory_bytes=memory_bytes,
        decode_tokens=1 + deployment.num_speculative_tokens,
        in_flight_tokens=deployment.in_flight_tokens,
    )


def _block_tokens(model: Model, deployment: Deployment) -> int:
    if deployment.block_size:
        return deployment.block_size
    latent = any(layer.cache.kind == "mla" for layer in model.layers)
    return LATENT_BLOCK_TOKENS if latent else BLOCK_TOKENS


def _slots(group: Family, deployment: Deployment) -> int | None:
    return 1 + deployment.num_speculative_tokens if group.kind.name == "state" else None


def _families(layers: tuple[Layer, ...], rank: Rank) -> list[Family]:
    """Gather layers by what they keep over time, in order of first appearance."""
    by_key: dict[tuple[object, ...], list[Layer]] = {}
    for layer in layers:
        by_key.setdefault(_behaviour(layer, rank), []).append(layer)
    return [
        Family(kind=kind_of(cache), name=_name(cache), layers=tuple(members))
        for members in by_key.values()
        for cache in [members[0].cache]
    ]


def _behaviour(layer: Layer, rank: Rank) -> tuple[object, ...]:
    cache = layer.cache
    if isinstance(cache, State):
        return (kind_of(cache), cache.family, cache.state_bytes(rank))
    return (kind_of(cache),)


def _name(cache: Cache) -> str:
    return cache.family if isinstance(cache, State) else cache.kind


def _page(layer: Layer, rank: Rank, block_tokens: int) -> int:
    if isinstance(layer.cache, State):
        return layer.cache.state_bytes(rank)
    return layer.cache.token_bytes(rank) * block_tokens


def _splits(families: list[Family]) -> Iterator[list[Family]]:
    """All ways to cut the state families so that no slot has more than n layers' states."""
    most = max((len(f.layers) for f in families if f.kind.name == "state"), default=1)
    seen = 0
    for per_slot in range(most, 0, -1):
        groups = [
            group
            for family in families
            for group in (_cut(family, per_slot) if family.kind.name == "state" else [family])
        ]
        if len(groups) > max(MAX_GROUPS, len(families)):
            return
        if len(groups) > seen:
            seen = len(groups)
            yield groups


def _cut(family: Family, per_slot: int) -> list[Family]:
    """Deal a state family's layers out evenly, so that each pipeline stage has its share."""
    count = ceil_div(len(family.layers), per_slot)
    if count == 1:
        return [family]
    return [
        msgspec.structs.replace(
            family, name=f"{family.name}.{index}", layers=family.layers[index::count]
        )
        for index in range(count)
    ]


def _demand(
    group: Family, block_bytes: int, deployment: Deployment, block_tokens: int
) -> slab.Demand:
    """Bytes of a block, and those of a request of TYPICAL_LENGTH tokens."""
    slots = _slots(group, deployment)
    if slots is not None:
        return slab.Demand(block_bytes, slots * block_bytes)
    tokens = group.kind.encoder_tokens or min(TYPICAL_LENGTH, group.kind.window or TYPICAL_LENGTH)
    return slab.Demand(block_bytes, ceil_div(tokens, block_tokens) * block_bytes)
