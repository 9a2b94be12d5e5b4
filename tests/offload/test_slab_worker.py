"""Where the worker side finds the blocks of layers that lie in slabs."""

from typing import Any

import pytest
import torch
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.slabs.worker import SlabWorker
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
)

NUM_SLABS, CUT, SLAB_BYTES = 5, 4, 512
ATTENTION = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.int8)
STATE = MambaSpec(
    block_size=64,
    shapes=((100,), (156,)),
    dtypes=(torch.int8, torch.int8),
    mamba_cache_mode="align",
)
"""Two attention layers of 32 bytes a block, and two layers of 256 bytes a state."""


def config() -> NaturalKVCacheConfig:
    size = NUM_SLABS * SLAB_BYTES
    return NaturalKVCacheConfig(
        NUM_SLABS,
        [
            KVCacheTensor(size=size, layers=["a0", "a1"], layer_stride=32, block_stride=128),
            KVCacheTensor(
                size=size, layers=["s0", "s1"], layer_stride=256, block_stride=SLAB_BYTES
            ),
        ],
        [KVCacheGroupSpec(["a0", "a1"], ATTENTION), KVCacheGroupSpec(["s0", "s1"], STATE)],
        pools=(0, 1),
        blocks_per_slab=(CUT, 1),
    )


def caches(backing: torch.Tensor) -> dict[str, Any]:
    """Views of layers as vLLM's runners make them: blocks of tokens, and the parts of a state."""

    def view(first: int, count: int, stride: int, size: int) -> torch.Tensor:
        return backing.as_strided((count, size), (stride, 1), first)

    num_blocks = NUM_SLABS * CUT
    return {
        **{f"a{row}": view(32 * row, num_blocks, 128, 32) for row in range(2)},
        **{
            f"s{row}": [
                view(256 * row, NUM_SLABS, SLAB_BYTES, 100),
                view(256 * row + 100, NUM_SLABS, SLAB_BYTES, 156),
            ]
            for row in range(2)
        },
    }


def worker() -> Any:
    made: Any = SlabWorker.__new__(SlabWorker)
    made.kv_cache_config = config()
    made._init_worker = lambda canonical: setattr(made, "canonical", canonical)
    return made


def test_each_id_of_a_group_has_a_row_of_its_own_bytes() -> None:
    backing = torch.randint(-128, 127, (NUM_SLABS * SLAB_BYTES,), dtype=torch.int8)
    made = worker()
    made.register_kv_caches(caches(backing))
    tensors, refs = made.canonical.tensors, made.canonical.group_data_refs
    assert [[ref.page_size_bytes for ref in group] for group in refs] == [[32, 32], [256, 256]]
    for row, ref in enumerate(refs[0]):
        rows = tensors[ref.tensor_idx].tensor
        assert len(rows) == NUM_SLABS * CUT
        for number, block in enumerate(rows):
            first = 128 * number + 32 * row
            assert torch.equal(block, backing[first : first + 32])
    for row, ref in enumerate(refs[1]):
        rows = tensors[ref.tensor_idx].tensor
        assert len(rows) == NUM_SLABS
        for number, state in enumerate(rows):
            first = SLAB_BYTES * number + 256 * row
            assert torch.equal(state, backing[first : first + 256])


def test_a_layer_that_lies_elsewhere_is_an_error() -> None:
    backing = torch.zeros(NUM_SLABS * SLAB_BYTES, dtype=torch.int8)
    views = caches(backing)
    views["a1"] = views["a0"]
    with pytest.raises(HybridBlocksError, match=r"layer a1 begins at byte 0 of .*, not 32"):
        worker().register_kv_caches(views)
