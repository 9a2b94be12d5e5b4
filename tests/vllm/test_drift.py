"""vLLM is what was recorded of it, in every tested version, and our classes are like vLLM's."""

import inspect
from typing import Any

import pytest
import vllm
from hybrid_blocks._core.vllm import Block
from hybrid_blocks.vllm.pool import BlockPool, CachedBlocks, FreeBlockQueue
from hybrid_blocks.vllm.surface import differences, support
from surface import CALLABLES, INSTALLED, SURFACE, VERSION, found_in, is_present, parameters_of
from vllm.v1.core.block_pool import BlockHashToBlockMap
from vllm.v1.core.block_pool import BlockPool as VllmBlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

OURS = {
    VllmBlockPool: BlockPool,
    BlockHashToBlockMap: CachedBlocks,
    FreeKVCacheBlockQueue: FreeBlockQueue,
    KVCacheBlock: Block,
}


OWNERS = [f"{theirs.__module__}:{theirs.__qualname__}" for theirs in OURS]
POOLS_CALLABLES = [(owner, method) for owner, method in CALLABLES if owner in OWNERS]


def test_the_installed_version_is_a_tested_one() -> None:
    assert support.is_tested(vllm.__version__)


def test_nothing_that_the_adapter_needs_of_vllm_differs_from_the_record() -> None:
    found = differences(vllm.__version__)
    assert {tier: it for tier, it in found.items() if it and INSTALLED.reaches(tier)} == {}


@pytest.mark.parametrize("owner", OWNERS)
def test_our_class_offers_every_method_but_those_listed(owner: str) -> None:
    ours = OURS[found_in(owner)]
    missing = [method for method in SURFACE["callables"][owner] if not hasattr(ours, method)]
    present = [method for method in missing if is_present(f"{owner}.{method}")]
    assert sorted(present) == sorted(SURFACE["not_offered"].get(owner, []))


@pytest.mark.parametrize(("owner", "method"), POOLS_CALLABLES)
def test_our_methods_take_the_same_parameters(owner: str, method: str) -> None:
    ours = getattr(OURS[found_in(owner)], method, None)
    if ours is not None:
        assert list(inspect.signature(ours).parameters) == parameters_of(owner, method)


def parts_of(pool: VllmBlockPool) -> dict[str, Any]:
    return {"pool": pool, "queue": pool.free_block_queue, "block": pool.blocks[0]}


@pytest.mark.parametrize("pool_class", [VllmBlockPool, BlockPool])
def test_the_parts_of_a_pool_have_these_attributes(pool_class: type[VllmBlockPool]) -> None:
    pool = pool_class(num_gpu_blocks=1, enable_caching=True, hash_block_size=16)
    for part, found in parts_of(pool).items():
        for attribute in SURFACE["parts"][part]["attributes"]:
            if attribute == "num_hash_lookahead_tokens" and VERSION < (0, 33):
                continue
            assert hasattr(found, attribute), f"{part}.{attribute}"


def test_vllm_keeps_nothing_in_a_pool_that_the_adapter_does_not_know() -> None:
    pool = VllmBlockPool(num_gpu_blocks=1, enable_caching=True, hash_block_size=16)
    assert set(vars(pool)) <= set(SURFACE["parts"]["pool"]["attributes"])
    assert set(KVCacheBlock.__slots__) <= set(SURFACE["parts"]["block"]["attributes"])
