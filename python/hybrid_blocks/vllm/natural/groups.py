"""Groups and tensors of level ``natural``, for the slabs that fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, KVCacheTensor

from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.geometry.layout import Layout, cut_slabs, lay_out
from hybrid_blocks.geometry.natural import plan_arena
from hybrid_blocks.kernels import Place, Run, StateLayout
from hybrid_blocks.model.layer import RUNNING, StateFormat
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.natural import step_price
from hybrid_blocks.vllm.natural.layers import (
    cached_layers,
    heads_of,
    layer_groups,
    zeroes_single_blocks,
)
from hybrid_blocks.vllm.specs import is_state
from hybrid_blocks.vllm.worker.copies import Recipe


@dataclass
class SlabGroupSpec(KVCacheGroupSpec):
    """A group of level ``natural``. The type tells it from vLLM's wherever groups are passed on.

    All groups of an engine carry the format of its checkpoints, and the ranks among which decode
    context parallelism shares out a block's tokens. ``layers_by_stage`` are the names of the
    group's layers on each pipeline stage. ``layer_names`` are those of one stage where the group is
    a worker's, and those of all in the plan of the whole model. ``reported_spec`` is the one that
    workers report. ``prefill_checkpoint_alignment`` divides the tokens after which a forward can
    leave a state, in all groups of an engine; ``None`` if chunks end at checkpoints.
    """

    reported_spec: KVCacheSpec | None = None
    checkpoint_format: StateFormat = RUNNING
    layers_by_stage: tuple[tuple[str, ...], ...] = ()
    dcp_world_size: int = 1
    prefill_checkpoint_alignment: int | None = None


def are_natural(groups: Sequence[KVCacheGroupSpec]) -> bool:
    """Return whether groups were made here."""
    return bool(groups) and all(isinstance(group, SlabGroupSpec) for group in groups)


def make_groups(
    specs: Mapping[str, KVCacheSpec],
    checkpoint_format: StateFormat = RUNNING,
    stage_of: Mapping[str, int] | None = None,
    dcp_world_size: int = 1,
    prefill_checkpoint_alignment: int | None = None,
) -> list[KVCacheGroupSpec]:
    """Group layers: attention layers of one spec together, state layers in as many as pay.

    ``stage_of`` names the pipeline stages of layers that are not on the first one.

    vLLM's own code leaves no states from inside a forward: it would look for their place in a
    column, and a state has one.
    """
    groups: list[KVCacheGroupSpec] = []
    num_stages = 1 + max((stage_of or {}).values(), default=0)
    layers = cached_layers(specs, checkpoint_format, stage_of, dcp_world_size)
    for group in lay_out(layers).groups:
        names = [str(layer.name) for layer in group.layers]
        members = [specs[name] for name in names]
        spec = reported = type(members[0]).merge(members)
        if is_state(spec):
            spec = replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)
        held: list[list[str]] = [[] for _ in range(num_stages)]
        for layer in group.layers:
            held[layer.stage].append(str(layer.name))
        groups.append(
            SlabGroupSpec(
                names,
                spec,
                reported_spec=reported,
                checkpoint_format=checkpoint_format,
                layers_by_stage=tuple(map(tuple, held)),
                dcp_world_size=dcp_world_size,
                prefill_checkpoint_alignment=prefill_checkpoint_alignment,
            )
        )
    return groups


def of_worker(
    groups: Sequence[KVCacheGroupSpec], specs: Mapping[str, KVCacheSpec]
) -> list[KVCacheGroupSpec]:
    """Return the groups with the layers that a worker holds. All workers cut their slabs alike."""
    return [
        replace(group, layer_names=[name for name in group.layer_names if name in specs])
        for group in groups
    ]


def layout_of(groups: Sequence[KVCacheGroupSpec]) -> Layout:
    """Return how slabs are cut for groups that were made here."""
    slabs = [group for group in groups if isinstance(group, SlabGroupSpec)]
    stages = [group.layers_by_stage for group in slabs]
    first = slabs[0]
    return cut_slabs(layer_groups(slabs, stages, first.checkpoint_format, first.dcp_world_size))


def make_config(
    vllm_config: VllmConfig, groups: list[KVCacheGroupSpec], num_slabs: int
) -> NaturalKVCacheConfig:
    """Place the groups' layers in ``num_slabs`` slabs, the null slab included.

    A worker with fewer layers than another pipeline stage leaves room in its slabs.
    """
    layout = layout_of(groups)
    tensors = [
        _tensors(group.layer_names, layout, number, num_slabs)
        for number, group in enumerate(groups)
    ]
    interval = vllm_config.cache_config.prefix_cache_retention_interval
    return NaturalKVCacheConfig(
        num_blocks=num_slabs,
        kv_cache_tensors=[tensor for placed in tensors for tensor in placed],
        kv_cache_groups=groups,
        # vLLM checks the interval against its own blocks.
        prefix_cache_retention_interval=None if interval is None else 0,
        checkpoint_interval=interval,
        prefill_checkpoint_alignment=_alignment(groups),
        step_tokens=step_price.tokens_of(vllm_config),
        pools=layout.pools,
        kept_pools=layout.kept_pools,
        recipes=tuple(
            _recipe(groups[number], layout, number, placed) for number, placed in enumerate(tensors)
        ),
        blocks_per_slab=layout.cuts + layout.kept_cuts,
        zeroes_single_blocks=zeroes_single_blocks(vllm_config),
    )


def _alignment(groups: Sequence[KVCacheGroupSpec]) -> int | None:
    """Return the common multiple of tokens after which all groups can leave a state."""
    numbers = [it.prefill_checkpoint_alignment for it in groups if isinstance(it, SlabGroupSpec)]
    known = [number for number in numbers if number is not None]
    return lcm(*known) if len(known) == len(numbers) else None


def _tensors(names: list[str], layout: Layout, number: int, num_slabs: int) -> list[KVCacheTensor]:
    """Place layer ``i`` in region ``i`` modulo the regions; layers of a region lie side by side."""
    place = layout.groups[number].layers[0].place_bytes
    run = layout.slab_bytes // layout.num_regions
    region, stride = run * num_slabs, run // layout.blocks_per_slab[number]
    common: dict[str, Any] = {"size": layout.slab_bytes * num_slabs, "block_stride": stride}
    if layout.num_regions == 1:
        # A copy: workers add layers to a group that read the cache of one of its own.
        layers = list(names)
        return [KVCacheTensor(layers=layers, layer_stride=place, **common)] if names else []
    return [
        KVCacheTensor(
            layers=names[first : first + layout.num_regions],
            layer_stride=region,
            offset=row * place,
            **common,
        )
        for row, first in enumerate(range(0, len(names), layout.num_regions))
    ]


def _recipe(
    group: KVCacheGroupSpec, layout: Layout, number: int, tensors: Sequence[KVCacheTensor]
) -> Recipe | None:
    """Return how a group's checkpoints are converted: they lie as its states do, but closer."""
    cut, spec = layout.kept_per_slab[number], group.kv_cache_spec
    if cut is None or not is_state(spec) or not isinstance(group, SlabGroupSpec):
        return None
    layer, (heads, numbers) = layout.groups[number].layers[0], heads_of(spec)
    place, stride = layer.kept_place_bytes, layout.slab_bytes // layout.num_regions // cut
    num_slabs = tensors[0].size // layout.slab_bytes
    return Recipe(
        arena_bytes=tensors[0].size,
        layout=StateLayout(
            state_format=group.checkpoint_format,
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
