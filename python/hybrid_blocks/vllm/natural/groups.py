"""Groups and tensors of level ``natural``, for the slabs that fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
)

from hybrid_blocks.plan.geometry.arena import ArenaPlan
from hybrid_blocks.plan.geometry.layout import LayerGroup, Layout, cut_slabs, lay_out
from hybrid_blocks.plan.geometry.natural import plan_arena
from hybrid_blocks.vllm.natural.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.natural.layers import cached_layers, layer_groups
from hybrid_blocks.vllm.natural.zeroing import zeroes_single_blocks


@dataclass
class SlabGroupSpec(KVCacheGroupSpec):
    """A group of level ``natural``. The type tells it from vLLM's wherever groups are passed on."""


def are_natural(groups: Sequence[KVCacheGroupSpec]) -> bool:
    """Return whether groups were made here."""
    return bool(groups) and all(isinstance(group, SlabGroupSpec) for group in groups)


def make_groups(specs: Mapping[str, KVCacheSpec]) -> list[KVCacheGroupSpec]:
    """Group layers: attention layers of one spec together, state layers in as many as pay.

    Workers write no states in the middle of a chunk: a state has one column, so there is no place
    for them.
    """
    groups: list[KVCacheGroupSpec] = []
    for group in lay_out(cached_layers(specs)).groups:
        names = [str(layer.name) for layer in group.layers]
        members = [specs[name] for name in names]
        spec = type(members[0]).merge(members)
        if isinstance(spec, MambaSpec):
            spec = replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)
        groups.append(SlabGroupSpec(names, spec))
    return groups


def layout_of(groups: Sequence[KVCacheGroupSpec]) -> Layout:
    """Return how slabs are cut for groups that were made here."""
    return cut_slabs(layer_groups(groups))


def make_config(
    vllm_config: VllmConfig, groups: list[KVCacheGroupSpec], num_slabs: int
) -> NaturalKVCacheConfig:
    """Place the groups' layers in ``num_slabs`` slabs, the null slab included."""
    layout = layout_of(groups)
    interval = vllm_config.cache_config.prefix_cache_retention_interval
    return NaturalKVCacheConfig(
        num_blocks=num_slabs,
        kv_cache_tensors=[
            tensor
            for group, cut in zip(layout.groups, layout.blocks_per_slab, strict=True)
            for tensor in _tensors(group, layout, cut, num_slabs)
        ],
        kv_cache_groups=groups,
        # vLLM checks the interval against its own blocks.
        prefix_cache_retention_interval=None if interval is None else 0,
        checkpoint_interval=interval,
        pools=layout.pools,
        blocks_per_slab=layout.cuts,
        zeroes_single_blocks=zeroes_single_blocks(vllm_config),
    )


def _tensors(group: LayerGroup, layout: Layout, cut: int, num_slabs: int) -> list[KVCacheTensor]:
    """Place layer ``i`` in region ``i`` modulo the regions; layers of a region lie side by side."""
    names = [str(layer.name) for layer in group.layers]
    place = group.layers[0].place_bytes
    run = layout.slab_bytes // layout.num_regions
    region = run * num_slabs
    common: dict[str, Any] = {"size": layout.slab_bytes * num_slabs, "block_stride": run // cut}
    if layout.num_regions == 1:
        return [KVCacheTensor(layers=names, layer_stride=place, **common)]
    rows = range(group.layers_per_region(layout.num_regions))
    return [
        KVCacheTensor(
            layers=names[row * layout.num_regions : (row + 1) * layout.num_regions],
            layer_stride=region,
            offset=row * place,
            **common,
        )
        for row in rows
    ]


def arena_plan(vllm_config: VllmConfig, config: KVCacheConfig) -> ArenaPlan:
    """Return the plan that a configuration carries out, with the counts of an engine's steps."""
    layout = layout_of(config.kv_cache_groups)
    return plan_arena(
        layout,
        config.num_blocks * layout.slab_bytes,
        decode_tokens=1 + vllm_config.num_speculative_tokens,
        in_flight_tokens=vllm_config.max_in_flight_tokens,
    )


def needed_bytes(vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> int:
    """Return the bytes of slabs for one request of the maximum length, without the null slab."""
    layout = layout_of(groups)
    enough = plan_arena(
        layout,
        2 * layout.slab_bytes,
        decode_tokens=1 + vllm_config.num_speculative_tokens,
        in_flight_tokens=vllm_config.max_in_flight_tokens,
    )
    return enough.slabs(1, vllm_config.model_config.max_model_len) * layout.slab_bytes
