"""The cache groups of vLLM's plan as vLLM's own objects. Imports vLLM."""

from dataclasses import dataclass
from math import gcd, lcm
from typing import Self

import torch
from vllm.v1.kv_cache_interface import (
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from hybrid_blocks.tools.plan import Deployment, VllmPlan
from hybrid_blocks.tools.plan.vllm.grouping import VllmGroup
from hybrid_blocks.tools.replay.errors import ReplayError
from hybrid_blocks.vllm.specs import make


@dataclass(frozen=True)
class BlockSizes:
    """Tokens of the block that all groups end at, of a hash, and between retained states."""

    block: int
    hash_block: int
    retention: int | None

    @classmethod
    def of(cls, groups: list[KVCacheGroupSpec], retention: int | None) -> Self:
        """Read them off groups; ``retention`` is rounded up to whole blocks."""
        specs = [group.kv_cache_spec for group in groups]
        sizes = [spec.block_size for spec in specs]
        hashed = [spec.block_size for spec in specs if getattr(spec, "prefix_cacheable", True)]
        block, hash_block = (lcm(*sizes), gcd(*hashed)) if len(sizes) > 1 else sizes * 2
        if not any(isinstance(spec, MambaSpec | SlidingWindowSpec) for spec in specs):
            retention = 0
        if retention:
            retention = -(-retention // block) * block
        return cls(block, hash_block, retention)


def make_groups(plan: VllmPlan, deployment: Deployment) -> list[KVCacheGroupSpec]:
    """Return the groups of a plan.

    Raises:
        ReplayError: a kind of attention that is not replayed.

    """
    return [_group(group, number, deployment) for number, group in enumerate(plan.groups)]


def _group(group: VllmGroup, number: int, deployment: Deployment) -> KVCacheGroupSpec:
    """Return one group; a depth may hold several caches of a kind, each in a group of its own."""
    names = [f"layers.{member.layer.depth}.{number}.{member.spec.kind}" for member in group.members]
    return KVCacheGroupSpec(names, _spec(group, deployment))


def _spec(group: VllmGroup, deployment: Deployment) -> KVCacheSpec:
    """Spec with vLLM's tokens a block; only the planner looks at heads and formats."""
    spec = group.spec
    if spec.kind == "mamba":
        return MambaSpec(
            block_size=spec.block_tokens,
            shapes=((spec.unpadded_bytes,),),
            dtypes=(torch.uint8,),
            page_size_padded=spec.page_bytes,
            mamba_cache_mode=deployment.mamba_cache_mode,
            num_speculative_blocks=deployment.num_speculative_tokens,
            num_prefill_checkpoint_blocks=int(spec.checkpoint_alignment is not None),
            prefill_checkpoint_alignment=spec.checkpoint_alignment,
        )
    made = attention_spec(spec.kind, spec.window, spec.block_tokens, spec.page_bytes)
    if made is None or spec.kind == "cross":
        raise ReplayError(f"vLLM's manager is not replayed for {spec.kind} attention")
    return made


def attention_spec(
    kind: str, window: int | None, block_tokens: int, page_bytes: int
) -> KVCacheSpec | None:
    """Return vLLM's spec of a layer by the bytes of a page; ``None`` if vLLM has no such kind."""
    parts = 1 if kind in ("ring", "mla") else 2
    return make(
        kind,
        window,
        block_size=block_tokens,
        num_kv_heads=1,
        head_size=page_bytes // (parts * block_tokens),
        dtype=torch.uint8,
    )
