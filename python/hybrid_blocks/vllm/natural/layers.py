"""vLLM's layers as the geometry sees them, and what a checkpoint keeps of their states."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
)

from hybrid_blocks.geometry.layout import CachedLayer, LayerGroup
from hybrid_blocks.model.kind import GroupKind
from hybrid_blocks.model.layer import RUNNING, StateFormat, StateTensor
from hybrid_blocks.vllm.specs import is_state, kind_of, row_of


def cached_layers(
    specs: Mapping[str, KVCacheSpec],
    checkpoint_format: StateFormat = RUNNING,
    stage_of: Mapping[str, int] | None = None,
    dcp_world_size: int = 1,
) -> list[CachedLayer]:
    """Return what the layout asks of each layer, in vLLM's order. One layer must have attention.

    ``stage_of`` names the pipeline stages of layers that are not on the first one.
    """
    block_tokens, stages = attention_block(specs.values(), dcp_world_size), stage_of or {}
    return [
        _cached(name, spec, block_tokens, checkpoint_format, stages.get(name, 0))
        for name, spec in specs.items()
    ]


def layer_groups(
    groups: Iterable[KVCacheGroupSpec],
    layers_by_stage: Iterable[Sequence[Sequence[str]]],
    checkpoint_format: StateFormat = RUNNING,
    dcp_world_size: int = 1,
) -> list[LayerGroup]:
    """Return the groups of the layout that vLLM's groups are, with the layers of all stages."""
    groups = list(groups)
    block_tokens = attention_block((group.kv_cache_spec for group in groups), dcp_world_size)
    return [
        LayerGroup(
            f"{_kind(group.kv_cache_spec).name}.{number}",
            tuple(
                _cached(name, group.kv_cache_spec, block_tokens, checkpoint_format, stage)
                for stage, names in enumerate(stages)
                for name in names
            ),
        )
        for number, (group, stages) in enumerate(zip(groups, layers_by_stage, strict=True))
    ]


def attention_block(specs: Iterable[KVCacheSpec], dcp_world_size: int) -> int:
    """Return the tokens of an attention block, on all ranks of decode context parallelism."""
    spec = next(spec for spec in specs if isinstance(spec, AttentionSpec))
    return resolve_dcp_kv_block_size(spec, dcp_world_size)


def _cached(
    name: str, spec: KVCacheSpec, block_tokens: int, checkpoint_format: StateFormat, stage: int
) -> CachedLayer:
    state = spec if is_state(spec) else None
    is_apart = checkpoint_format != RUNNING
    return CachedLayer(
        name=name,
        identity=spec,
        family=_kind(spec).name,
        kind=_kind(spec),
        page_bytes=spec.page_size_bytes,
        block_tokens=block_tokens,
        slots=None if state is None else 1 + state.num_speculative_blocks,
        dense=isinstance(spec, MLAAttentionSpec),
        stage=stage,
        kept_bytes=kept_bytes(state, checkpoint_format) if state and is_apart else None,
    )


def _kind(spec: Any) -> GroupKind:
    numbers = kind_of(spec).parameters
    retained = numbers.get("window", 0) + numbers.get("extra_retained", 0)
    return GroupKind(name=row_of(spec).name, window=retained or None)


def recurrent_tensor(spec: Any) -> StateTensor | None:
    """Return the tensor of a state's spec that may be converted: recurrent, of float32.

    The tensor is the last one of a state. A convolution is a tensor before it, or all that a layer
    has. Specs name no layers, so `offload.state_parts`, which goes by a layer's class, cannot tell.
    """
    is_alone = len(spec.shapes) == 1 and spec.mamba_type.name == "LINEAR"
    if not is_alone and len(spec.shapes) != 2:
        return None
    if spec.dtypes[-1] != torch.float32:
        return None
    return StateTensor("recurrent", spec.shapes[-1], "float32")


def heads_of(spec: Any) -> tuple[int, int]:
    """Return how many heads may be converted, and the numbers of one."""
    if (recurrent := recurrent_tensor(spec)) is None:
        return 0, 0
    heads = recurrent.shape[0]
    return heads, recurrent.nbytes // (4 * heads)


def kept_bytes(spec: Any, checkpoint_format: StateFormat) -> int:
    """Return the bytes of a layer's state in a checkpoint."""
    page_bytes: int = spec.page_size_bytes
    if (recurrent := recurrent_tensor(spec)) is None:
        return page_bytes
    return page_bytes - recurrent.nbytes + recurrent.kept_bytes(checkpoint_format)


def zeroes_single_blocks(vllm_config: VllmConfig) -> bool:
    """Return whether the engine's workers zero new attention blocks one by one.

    vLLM's first CPU model runner fills ``kv[block_id]`` in each layer of full attention. All other
    runners scale an id by the blocks of a view per id of the configuration, so that an id names a
    slab.
    """
    return current_platform.is_cpu() and not vllm_config.use_v2_model_runner
