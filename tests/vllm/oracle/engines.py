"""Small engines: every kind of group, alone and mixed, with the options that change decisions."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

_SIZES: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


def full(block_size: int) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size, **_SIZES)


def mla(block_size: int) -> KVCacheSpec:
    return MLAAttentionSpec(block_size=block_size, **_SIZES)


def sliding(block_size: int, window: int, extra: int = 0) -> KVCacheSpec:
    return SlidingWindowSpec(
        block_size=block_size, sliding_window=window, extra_retained_tokens=extra, **_SIZES
    )


def chunked(block_size: int, chunk: int) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(block_size=block_size, attention_chunk_size=chunk, **_SIZES)


def mamba(
    block_size: int, mode: str, num_speculative: int = 0, checkpoint_alignment: int | None = None
) -> KVCacheSpec:
    return MambaSpec(
        block_size=block_size,
        shapes=((1,),),
        dtypes=(torch.float32,),
        mamba_cache_mode=mode,
        num_speculative_blocks=num_speculative,
        num_prefill_checkpoint_blocks=int(checkpoint_alignment is not None),
        prefill_checkpoint_alignment=checkpoint_alignment,
    )


@dataclass(frozen=True)
class Engine:
    """Arguments of a manager's constructor, and how its scheduler behaves."""

    groups: tuple[KVCacheSpec, ...]
    scheduler_block_size: int
    hash_block_size: int
    num_blocks: int = 100
    max_model_len: int = 160
    enable_caching: bool = True
    use_eagle: bool = False
    eagle_groups: frozenset[int] = frozenset()
    num_spec_tokens: int = 0
    retention_interval: int | None = None
    watermark: float = 0.0
    lookahead: int = 0
    num_prefill_lookahead: int = 0
    num_hash_lookahead: int = 0
    junctions: bool = False
    dcp: int = 1
    pcp: int = 1

    def config(self) -> KVCacheConfig:
        return KVCacheConfig(
            num_blocks=self.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer{i}"], spec, is_eagle_group=i in self.eagle_groups)
                for i, spec in enumerate(self.groups)
            ],
            prefix_cache_retention_interval=self.retention_interval,
        )

    def arguments(self) -> dict[str, Any]:
        return {
            "kv_cache_config": self.config(),
            "max_model_len": self.max_model_len,
            "max_in_flight_tokens": 64,
            "scheduler_block_size": self.scheduler_block_size,
            "hash_block_size": self.hash_block_size,
            "enable_caching": self.enable_caching,
            "use_eagle": self.use_eagle,
            "num_prefill_lookahead": self.num_prefill_lookahead,
            "log_stats": True,
            "enable_kv_cache_events": True,
            "watermark": self.watermark,
            "dcp_world_size": self.dcp,
            "pcp_world_size": self.pcp,
            "enable_mamba_shared_prefix_checkpoint": self.junctions,
            **self.hash_lookahead(),
        }

    def hash_lookahead(self) -> dict[str, int]:
        """Return the argument that vLLM knows since 0.33, if it is wanted."""
        count = self.num_hash_lookahead
        return {"num_hash_lookahead_tokens": count} if count else {}

    @property
    def has_encoder(self) -> bool:
        return any(isinstance(spec, CrossAttentionSpec) for spec in self.groups)

    @property
    def has_aligned_state(self) -> bool:
        return any(
            isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align" for spec in self.groups
        )


def _attention() -> dict[str, Engine]:
    single = partial(Engine, scheduler_block_size=4, hash_block_size=4)
    mixed = partial(Engine, scheduler_block_size=8, hash_block_size=4)
    return {
        "full": single((full(4),)),
        "full-watermark": single((full(4),), watermark=0.1, num_blocks=48),
        "full-uncached": single((full(4),), enable_caching=False),
        "full-eagle": single((full(4),), use_eagle=True, num_spec_tokens=2, lookahead=2),
        "full-hash-lookahead": single((full(4),), num_hash_lookahead=1),
        "mla": single((mla(4),)),
        "sliding": single((sliding(4, 9),)),
        "sliding-one-token": single((sliding(4, 1),)),
        "sliding-eagle": single((sliding(4, 9, 2),), use_eagle=True, num_spec_tokens=1),
        "chunked": single((chunked(4, 16),)),
        "full-sliding": single((full(4), sliding(4, 9)), num_blocks=120),
        "full-chunked": single((full(4), chunked(4, 16)), num_blocks=120),
        "full-5-sliding": single(
            (full(4), *(sliding(4, window) for window in (9, 9, 9, 17, 17))), num_blocks=250
        ),
        "full-sliding-eagle": single(
            (full(4), sliding(4, 9), full(4)),
            num_blocks=150,
            use_eagle=True,
            eagle_groups=frozenset({2}),
            num_spec_tokens=2,
            lookahead=2,
        ),
        "full-sliding-multi-module": single(
            (full(4), sliding(4, 9, 1)),
            num_blocks=150,
            use_eagle=True,
            num_spec_tokens=2,
            num_prefill_lookahead=2,
        ),
        "full-wide-sliding": mixed((full(8), sliding(4, 9)), num_blocks=120),
        "full-narrow-sliding": mixed((full(4), sliding(8, 17)), num_blocks=120),
        "full-wide-sliding-eagle": mixed(
            (full(8), sliding(4, 9)), num_blocks=120, use_eagle=True, num_spec_tokens=1
        ),
        "sliding-retention": single(
            (full(4), sliding(4, 9)), num_blocks=120, retention_interval=16
        ),
        "sliding-retention-0": single(
            (full(4), sliding(4, 5)), num_blocks=120, retention_interval=0
        ),
        "sliding-retention-eagle": mixed(
            (full(8), sliding(4, 9)),
            num_blocks=120,
            retention_interval=32,
            use_eagle=True,
            num_spec_tokens=1,
        ),
    }


def _mamba() -> dict[str, Engine]:
    uncached = partial(
        Engine, scheduler_block_size=160, hash_block_size=4, enable_caching=False, num_blocks=120
    )
    engines = {
        f"mamba-none-{spec}": uncached(
            (full(4), mamba(160, "none", spec), mamba(160, "none", spec)),
            num_spec_tokens=spec,
            lookahead=spec,
        )
        for spec in range(5)
    }
    # vLLM gives a hybrid model without prefix caching hash blocks of the common multiple.
    engines["mamba-none-wide-hash"] = replace(engines["mamba-none-1"], hash_block_size=160)
    aligned = partial(Engine, scheduler_block_size=16, num_blocks=120)
    for spec in range(5):
        engines[f"mamba-align-{spec}"] = aligned(
            (full(16), mamba(16, "align", spec), mamba(16, "align", spec)),
            hash_block_size=16,
            num_spec_tokens=spec,
        )
        engines[f"mamba-partial-{spec}"] = aligned(
            (full(16), mamba(16, "align", spec)), hash_block_size=4, num_spec_tokens=spec
        )
    partly = partial(aligned, (full(16), mamba(16, "align", 1)), hash_block_size=4)
    engines |= {
        "mamba-align-alone": aligned((mamba(16, "align"),), hash_block_size=16, num_blocks=24),
        "mamba-partial-tight": aligned(
            (full(16), mamba(16, "align"), mamba(16, "align")), hash_block_size=8, num_blocks=20
        ),
        "mamba-partial-narrow-full": aligned(
            (full(4), mamba(16, "align"), sliding(4, 9)), hash_block_size=4
        ),
        "mamba-partial-wide-sliding": aligned(
            (full(16), mamba(16, "align"), sliding(8, 17)), hash_block_size=4
        ),
        "mamba-retention": aligned(
            (full(16), mamba(16, "align", 1)), hash_block_size=16, retention_interval=32
        ),
        "mamba-retention-0": aligned(
            (full(16), mamba(16, "align"), sliding(16, 17)),
            hash_block_size=16,
            retention_interval=0,
        ),
        "mamba-partial-retention-0": partly(retention_interval=0),
        "mamba-partial-retention": partly(retention_interval=48),
        "mamba-partial-eagle": partly(use_eagle=True, num_spec_tokens=1, lookahead=1),
        "mamba-partial-junctions": partly(
            use_eagle=True, num_spec_tokens=1, lookahead=1, junctions=True
        ),
        "mamba-partial-hash-lookahead": partly(num_hash_lookahead=1),
        "mamba-checkpoints": aligned((full(16), mamba(16, "align", 0, 4)), hash_block_size=4),
        "mamba-narrow": aligned((full(16), mamba(8, "align", 1)), hash_block_size=8),
        "mamba-retention-dense": aligned(
            (full(16), mamba(16, "align", 1)), hash_block_size=16, retention_interval=16
        ),
        "mamba-checkpoints-at-blocks": aligned(
            (full(16), mamba(16, "align", 0, 16)), hash_block_size=16, retention_interval=32
        ),
        "mamba-checkpoints-at-blocks-retention-0": aligned(
            (full(16), mamba(16, "align", 1, 16)),
            hash_block_size=16,
            num_spec_tokens=1,
            retention_interval=0,
        ),
        "mamba-checkpoints-drafts": aligned(
            (full(16), mamba(16, "align", 2, 4)), hash_block_size=4, num_spec_tokens=2
        ),
        "mamba-checkpoints-retention-0": aligned(
            (full(16), mamba(16, "align", 1, 4)),
            hash_block_size=4,
            num_spec_tokens=1,
            retention_interval=0,
        ),
        "mamba-checkpoints-eagle": aligned(
            (full(16), mamba(16, "align", 1, 8)),
            hash_block_size=4,
            use_eagle=True,
            num_spec_tokens=1,
            lookahead=1,
        ),
    }
    return engines


def _scratch() -> dict[str, Engine]:
    """Return engines with windows that are replayed, not cached, and with cross attention."""
    replayed = SlidingWindowMLASpec(
        block_size=4, sliding_window=9, bounded_replay=True, dcp_sharded=False, **_SIZES
    )
    cross = CrossAttentionSpec(block_size=4, **_SIZES)
    single = partial(Engine, scheduler_block_size=4, hash_block_size=4, num_blocks=120)
    return {
        "replayed-full": single((full(4), replayed)),
        "replayed-mla-sliding": single((mla(4), sliding(4, 9), replayed, replayed)),
        "replayed-wide": Engine((full(8), replayed), 8, 4, num_blocks=120),
        "replayed-eagle": single((full(4), replayed), use_eagle=True, num_spec_tokens=1),
        "cross-full": single((full(4), cross), enable_caching=False),
        "cross-sliding": single((full(4), sliding(4, 9), cross, cross), enable_caching=False),
    }


def tight(engine: Engine) -> Engine:
    """Return the engine with so few blocks that requests preempt each other."""
    return replace(engine, num_blocks=max(12, engine.num_blocks // 4))


def _rings() -> dict[str, Engine]:
    """Return engines with a group that holds one block a request and caches nothing."""
    ring = CircularBufferSpec(block_size=8, **_SIZES)
    mixes: dict[str, tuple[KVCacheSpec, ...]] = {
        "ring-full": (full(8), ring),
        "ring-sliding": (full(8), ring, sliding(4, 9)),
        "ring-mamba": (full(16), mamba(16, "align", 1), ring),
        "ring-two": (ring, mla(8), ring, chunked(8, 16)),
    }
    engines = {}
    for name, groups in mixes.items():
        sizes = [spec.block_size for spec in groups]
        engines[name] = Engine(groups, math.lcm(*sizes), math.gcd(*sizes), num_blocks=120)
        engines[f"{name}-tight"] = tight(engines[name])
    engines["ring-eagle"] = replace(engines["ring-full"], use_eagle=True, num_spec_tokens=1)
    engines["ring-uncached"] = replace(engines["ring-full"], enable_caching=False)
    return engines


def _context_parallel() -> dict[str, Engine]:
    """Return engines whose ranks share out each block, which holds ``dcp`` times the tokens."""
    mixes: dict[str, tuple[KVCacheSpec, ...]] = {
        "full": (full(4),),
        "mla-two": (mla(4), mla(8)),
        "full-mamba": (full(8), mamba(16, "align", 1)),
        "mla-mamba": (mla(4), mamba(16, "align"), mamba(16, "align")),
        "full-mamba-wide": (full(16), mamba(16, "align")),
    }
    engines = {}
    for name, groups in mixes.items():
        for dcp in (2, 4):
            sharded = [spec.block_size * (dcp if spec.dcp_sharded else 1) for spec in groups]
            scheduler_block = math.lcm(*sharded)
            # One group alone is hashed by its own blocks.
            for hash_block in {math.gcd(*sharded), 4 if len(groups) > 1 else sharded[0]}:
                engines[f"dcp{dcp}-{name}-{hash_block}"] = Engine(
                    groups, scheduler_block, hash_block, num_blocks=120, dcp=dcp
                )
    engines["dcp2-tight"] = tight(engines["dcp2-full-mamba-4"])
    engines["dcp2-eagle"] = replace(engines["dcp2-full-8"], use_eagle=True, num_spec_tokens=1)
    engines["pcp2-full"] = Engine((full(4),), 4, 4, pcp=2)
    engines["pcp2-dcp2-mla-two"] = replace(engines["dcp2-mla-two-8"], pcp=2)
    return engines


def _known(engines: dict[str, Engine]) -> dict[str, Engine]:
    """Return the engines that the installed vLLM has the options for."""
    hashes_ahead = hasattr(BlockPool, "_lookahead_token_ids")
    return {
        name: engine
        for name, engine in engines.items()
        if hashes_ahead or not engine.num_hash_lookahead
    }


ATTENTION = _known(_attention())
MAMBA = _known(_mamba())
RINGS = _rings()
SCRATCH = _scratch()
CONTEXT_PARALLEL = _context_parallel()
ENGINES = ATTENTION | MAMBA | RINGS | SCRATCH | CONTEXT_PARALLEL
