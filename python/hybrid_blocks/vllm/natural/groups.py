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

from hybrid_blocks.kernels import Place, Run, StateLayout
from hybrid_blocks.model.layer import StateFormat
from hybrid_blocks.plan.geometry.arena import ArenaPlan
from hybrid_blocks.plan.geometry.layout import LayerGroup, Layout, cut_slabs, lay_out
from hybrid_blocks.plan.geometry.natural import plan_arena
from hybrid_blocks.vllm.converting_copies import Recipe
from hybrid_blocks.vllm.natural.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.natural.layers import cached_layers, layer_groups
from hybrid_blocks.vllm.natural.zeroing import zeroes_single_blocks
from hybrid_blocks.vllm.recurrent import heads_of


@dataclass
class SlabGroupSpec(KVCacheGroupSpec):
    """A group of level ``natural``. The type tells it from vLLM's wherever groups are passed on.

    All groups of an engine carry the format of its checkpoints.
    """

    checkpoint_format: StateFormat = "full"


def are_natural(groups: Sequence[KVCacheGroupSpec]) -> bool:
    """Return whether groups were made here."""
    return bool(groups) and all(isinstance(group, SlabGroupSpec) for group in groups)


def make_groups(
    specs: Mapping[str, KVCacheSpec], checkpoint_format: StateFormat = "full"
) -> list[KVCacheGroupSpec]:
    """Group layers: attention layers of one spec together, state layers in as many as pay.

    Workers write no states in the middle of a chunk: a state has one column, so there is no place
    for them.
    """
    groups: list[KVCacheGroupSpec] = []
    for group in lay_out(cached_layers(specs, checkpoint_format)).groups:
        names = [str(layer.name) for layer in group.layers]
        members = [specs[name] for name in names]
        spec = type(members[0]).merge(members)
        if isinstance(spec, MambaSpec):
            spec = replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)
        groups.append(SlabGroupSpec(names, spec, checkpoint_format=checkpoint_format))
    return groups


def layout_of(groups: Sequence[KVCacheGroupSpec]) -> Layout:
    """Return how slabs are cut for groups that were made here."""
    return cut_slabs(layer_groups(groups, _format_of(groups)))


def _format_of(groups: Sequence[Any]) -> StateFormat:
    """Return the format of checkpoints."""
    checkpoint_format: StateFormat = groups[0].checkpoint_format
    return checkpoint_format


def make_config(
    vllm_config: VllmConfig, groups: list[KVCacheGroupSpec], num_slabs: int
) -> NaturalKVCacheConfig:
    """Place the groups' layers in ``num_slabs`` slabs, the null slab included."""
    layout = layout_of(groups)
    tensors = [
        _tensors(group, layout, cut, num_slabs)
        for group, cut in zip(layout.groups, layout.blocks_per_slab, strict=True)
    ]
    interval = vllm_config.cache_config.prefix_cache_retention_interval
    return NaturalKVCacheConfig(
        num_blocks=num_slabs,
        kv_cache_tensors=[tensor for placed in tensors for tensor in placed],
        kv_cache_groups=groups,
        # vLLM checks the interval against its own blocks.
        prefix_cache_retention_interval=None if interval is None else 0,
        checkpoint_interval=interval,
        pools=layout.pools,
        kept_pools=layout.kept_pools,
        recipes=tuple(
            _recipe(groups[number], layout, number, placed) for number, placed in enumerate(tensors)
        ),
        blocks_per_slab=layout.cuts + layout.kept_cuts,
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


def _recipe(
    group: KVCacheGroupSpec, layout: Layout, number: int, tensors: Sequence[KVCacheTensor]
) -> Recipe | None:
    """Return how a group's checkpoints are converted: they lie as its states do, but closer."""
    cut, spec = layout.kept_per_slab[number], group.kv_cache_spec
    if cut is None or not isinstance(spec, MambaSpec):
        return None
    layer, (heads, numbers) = layout.groups[number].layers[0], heads_of(spec)
    place, stride = layer.kept_place_bytes, layout.slab_bytes // layout.num_regions // cut
    num_slabs = tensors[0].size // layout.slab_bytes
    return Recipe(
        arena_bytes=tensors[0].size,
        layout=StateLayout(
            state_format=_format_of([group]),
            num_running=num_slabs * layout.blocks_per_slab[number],
            num_kept=num_slabs * cut,
            page_bytes=layer.page_bytes,
            heads=heads,
            numbers=numbers,
            runs=tuple(
                Run(
                    len(tensor.layers),
                    Place(tensor.offset, tensor.layer_stride, tensor.block_stride),
                    Place(
                        row * place,
                        place if layout.num_regions == 1 else tensor.layer_stride,
                        stride,
                    ),
                )
                for row, tensor in enumerate(tensors)
            ),
        ),
    )


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
