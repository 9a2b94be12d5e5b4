"""The adapter relies on vLLM being what `surface.toml` says it is, in every supported version."""

import importlib
import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import vllm
from hybrid_blocks._core import Block
from hybrid_blocks.vllm import support
from hybrid_blocks.vllm.block_pool import BlockPool
from hybrid_blocks.vllm.cached_blocks import CachedBlocks
from hybrid_blocks.vllm.free_queue import FreeBlockQueue
from vllm.v1.core.block_pool import BlockHashToBlockMap
from vllm.v1.core.block_pool import BlockPool as VllmBlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

SURFACE = tomllib.loads(Path(__file__).with_name("surface.toml").read_text())
VERSION = tuple(map(int, vllm.__version__.split(".")[:2]))
OURS = {
    VllmBlockPool: BlockPool,
    BlockHashToBlockMap: CachedBlocks,
    FreeKVCacheBlockQueue: FreeBlockQueue,
    KVCacheBlock: Block,
}


def is_present(name: str) -> bool:
    since = SURFACE["since"].get(name)
    return since is None or tuple(map(int, since.split("."))) <= VERSION


def vllm_class(name: str) -> type:
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, type)
    return found


CALLABLES = [
    pytest.param(owner, method, parameters, id=f"{owner.rpartition(':')[2]}.{method}")
    for owner, methods in SURFACE["callables"].items()
    for method, parameters in methods.items()
    if is_present(f"{owner}.{method}")
]


def test_the_installed_version_is_a_supported_one() -> None:
    assert support.is_supported(vllm.__version__)


@pytest.mark.parametrize(("owner", "method", "parameters"), CALLABLES)
def test_vllm_has_the_callable_with_these_parameters(
    owner: str, method: str, parameters: list[str]
) -> None:
    assert list(inspect.signature(getattr(vllm_class(owner), method)).parameters) == parameters


@pytest.mark.parametrize("owner", list(SURFACE["callables"]))
def test_no_method_of_vllm_is_unknown_to_the_adapter(owner: str) -> None:
    own = {
        name
        for name, value in vars(vllm_class(owner)).items()
        if inspect.isfunction(value) and not name.startswith("__")
    }
    assert own <= set(SURFACE["callables"][owner])


@pytest.mark.parametrize("owner", list(SURFACE["callables"]))
def test_our_class_offers_every_method_but_those_listed(owner: str) -> None:
    ours = OURS[vllm_class(owner)]
    missing = [method for method in SURFACE["callables"][owner] if not hasattr(ours, method)]
    present = [method for method in missing if is_present(f"{owner}.{method}")]
    assert sorted(present) == sorted(SURFACE["not_offered"].get(owner, []))


@pytest.mark.parametrize(("owner", "method", "parameters"), CALLABLES)
def test_our_methods_take_the_same_parameters(
    owner: str, method: str, parameters: list[str]
) -> None:
    ours = getattr(OURS[vllm_class(owner)], method, None)
    if ours is not None:
        assert list(inspect.signature(ours).parameters) == parameters


def parts_of(pool: VllmBlockPool) -> dict[str, Any]:
    return {
        "pool": pool,
        "queue": pool.free_block_queue,
        "map": pool.cached_block_hash_to_block,
        "block": pool.blocks[0],
    }


@pytest.mark.parametrize("pool_class", [VllmBlockPool, BlockPool])
def test_the_parts_of_a_pool_have_these_attributes(pool_class: type[VllmBlockPool]) -> None:
    pool = pool_class(num_gpu_blocks=1, enable_caching=True, hash_block_size=16)
    for part, found in parts_of(pool).items():
        for attribute in SURFACE["attributes"][part]:
            if attribute == "num_hash_lookahead_tokens" and VERSION < (0, 33):
                continue
            assert hasattr(found, attribute), f"{part}.{attribute}"


def test_vllm_keeps_nothing_in_a_pool_that_the_adapter_does_not_know() -> None:
    pool = VllmBlockPool(num_gpu_blocks=1, enable_caching=True, hash_block_size=16)
    assert set(vars(pool)) <= set(SURFACE["attributes"]["pool"])
    assert set(KVCacheBlock.__slots__) <= set(SURFACE["attributes"]["block"])
