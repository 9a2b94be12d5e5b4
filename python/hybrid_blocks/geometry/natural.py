"""The natural plan: every group keeps its natural page size inside one arena."""

import msgspec

from hybrid_blocks.geometry.arena import ArenaPlan, GroupPlan
from hybrid_blocks.geometry.deployment import Deployment, stages
from hybrid_blocks.geometry.kernel_blocks import block_tokens as kernel_block_tokens
from hybrid_blocks.geometry.layout import CachedLayer, Layout, lay_out
from hybrid_blocks.model import Layer, Model, PlanError
from hybrid_blocks.model.kind import kind_of
from hybrid_blocks.model.layer import (
    RUNNING,
    FullAttention,
    LatentAttention,
    LatentIndex,
    State,
    StateFormat,
)
from hybrid_blocks.units import human


def plan_natural(
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    checkpoint_format: StateFormat | None = None,
) -> ArenaPlan:
    """Plan an arena for ``memory_bytes`` of free KV memory on each GPU, as level ``natural`` does.

    Groups need no equal numbers of layers. State layers are split into as many groups as pay: a
    smaller slot makes a smaller slab, so that memory moves between pools at a finer grain. In a
    ``checkpoint_format`` other than that of running states, checkpoints have a pool of their own;
    without one the deployment's counts.

    Raises:
        PlanError: the memory does not hold the null slab and one more.
    """
    block_tokens = deployment.block_size or kernel_block_tokens(model, deployment)
    layers = model.active_layers(deployment.num_speculative_tokens)
    if not layers:
        raise PlanError(f"{model.name}: no layer keeps a cache")
    cached = [
        _cached(layer, model, deployment, block_tokens, stage)
        for stage, held in enumerate(stages(model, layers, deployment.pp, deployment.pp_partition))
        for layer in held
    ]
    kept_as = checkpoint_format or deployment.checkpoint_format
    if kept_as != RUNNING:
        cached = [_with_checkpoints(layer, model, deployment, kept_as) for layer in cached]
    order = {layer: index for index, layer in enumerate(layers)}
    cached.sort(key=lambda layer: order[layer.name])  # type: ignore[index]
    return plan_arena(
        lay_out(cached),
        memory_bytes,
        decode_tokens=1 + deployment.num_speculative_tokens,
        in_flight_tokens=deployment.in_flight_tokens,
    )


def plan_arena(
    layout: Layout, memory_bytes: int, *, decode_tokens: int, in_flight_tokens: int
) -> ArenaPlan:
    """Return the arena that a layout makes of ``memory_bytes``.

    Raises:
        PlanError: the memory does not hold the null slab and one more.
    """
    num_slabs = memory_bytes // layout.slab_bytes
    if num_slabs < 2:
        raise PlanError(
            f"{human(memory_bytes)} hold no slab of {human(layout.slab_bytes)} beside the null slab"
        )
    return ArenaPlan(
        groups=tuple(_group_plan(layout, index) for index in range(len(layout.groups))),
        slab_bytes=layout.slab_bytes,
        num_slabs=num_slabs,
        num_regions=layout.num_regions,
        hash_block_size=layout.groups[0].layers[0].block_tokens,
        memory_bytes=memory_bytes,
        decode_tokens=decode_tokens,
        in_flight_tokens=in_flight_tokens,
    )


def _group_plan(layout: Layout, index: int) -> GroupPlan:
    group, cut = layout.groups[index], layout.blocks_per_slab[index]
    first, pages = group.layers[0], tuple(layer.page_bytes for layer in group.widest())
    return GroupPlan(
        name=group.name,
        kind=first.kind.name,
        layers=tuple(_depth(layer) for layer in group.layers),
        page_bytes=pages,
        block_tokens=first.block_tokens,
        block_bytes=sum(pages),
        block_stride=layout.slab_bytes // cut,
        blocks_per_slab=cut,
        pool=layout.pools[index],
        window=first.kind.window,
        slots_per_request=first.slots,
        encoder_tokens=first.kind.encoder_tokens,
        kept_pool=layout.kept_pools[index],
        kept_per_slab=layout.kept_per_slab[index],
    )


def _depth(layer: CachedLayer) -> int:
    return layer.name.depth if isinstance(layer.name, Layer) else -1


def _cached(
    layer: Layer, model: Model, deployment: Deployment, block_tokens: int, stage: int
) -> CachedLayer:
    rank = deployment.rank_of(layer, model)
    cache, kind = layer.cache, kind_of(layer.cache)
    slots: int | None = None
    if isinstance(cache, State):
        family, page = cache.family, cache.state_bytes(rank)
        slots = 1 + deployment.num_speculative_tokens
    else:
        family, page = cache.kind, cache.token_bytes(rank) * block_tokens
        if model.index is not None and family == FullAttention.kind:
            page += model.index.bytes_of(block_tokens)
    return CachedLayer(
        name=layer,
        identity=(kind, family, page, isinstance(cache, LatentAttention) and cache.leads),
        family=family,
        kind=kind,
        page_bytes=page,
        block_tokens=block_tokens,
        slots=slots,
        dense=isinstance(cache, LatentAttention | LatentIndex),
        stage=stage,
    )


def _with_checkpoints(
    cached: CachedLayer, model: Model, deployment: Deployment, state_format: StateFormat
) -> CachedLayer:
    if not isinstance(cached.name, Layer) or not isinstance(cached.name.cache, State):
        return cached
    rank = deployment.rank_of(cached.name, model)
    kept = cached.name.cache.kept_bytes(rank, state_format)
    return msgspec.structs.replace(cached, kept_bytes=kept)
