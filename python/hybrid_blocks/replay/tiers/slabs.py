"""Level ``natural`` as vLLM serves it: the slabs of a plan, and the plugin that manages them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec, MambaSpec

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.plan import ArenaPlan, GroupPlan
from hybrid_blocks.replay.managers.vllm_groups import attention_spec
from hybrid_blocks.vllm import installation
from hybrid_blocks.vllm.level import VARIABLE, Level
from hybrid_blocks.vllm.natural.config import NaturalKVCacheConfig


@contextmanager
def at_level_natural() -> Iterator[None]:
    """Let vLLM run at level ``natural`` meanwhile, as its plugin does."""
    with patch.dict(os.environ, {VARIABLE: Level.NATURAL}):
        installation.install(Level.NATURAL)
        try:
            yield
        finally:
            installation.uninstall()


def slab_config(
    geometry: ArenaPlan, max_model_len: int, retention: int | None
) -> NaturalKVCacheConfig:
    """Return what vLLM's scheduler gets of the arena of a plan that level ``natural`` serves."""
    # A state has one block for the life of its request.
    longest = round_up(max_model_len + 1, geometry.hash_block_size)
    groups = [
        KVCacheGroupSpec(
            [f"layers.{number}.{at}" for at in range(len(group.page_bytes))], _spec(group, longest)
        )
        for number, group in enumerate(geometry.groups)
    ]
    return NaturalKVCacheConfig(
        num_blocks=geometry.num_slabs,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=None if retention is None else 0,
        checkpoint_interval=retention,
        pools=tuple(group.pool for group in geometry.groups),
        blocks_per_slab=geometry.pools,
    )


def _spec(group: GroupPlan, longest: int) -> KVCacheSpec:
    page = group.page_bytes[0]
    if group.slots_per_request is not None:
        return MambaSpec(
            block_size=longest,
            shapes=((page,),),
            dtypes=(torch.uint8,),
            mamba_cache_mode="align",
            num_speculative_blocks=group.slots_per_request - 1,
        )
    made = attention_spec(group.kind, group.window, group.block_tokens, page)
    assert made is not None
    return made
