"""vLLM's copies and zeroing move and clear exactly the bytes of the slabs that are named."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hybrid_blocks.model import Layer, Model
from hybrid_blocks.model.layer import (
    Cache,
    FullAttention,
    LatentAttention,
    Mamba2,
    ShortConv,
    SlidingWindow,
)
from hybrid_blocks.tools.plan import Deployment
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_oracle import StateLayer
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.utils import KVBlockZeroer, copy_kv_cache_blocks_inplace

from natural.arena import Arena
from natural.engine import Engine, installed

SLABS = 7
STATE = Mamba2(inner_dim=64, groups=1, heads=4, head_dim=16, state_dim=32, conv_kernel=4)
FULL = FullAttention(kv_heads=1, head_dim=32)
WINDOW = SlidingWindow(kv_heads=2, head_dim=32, window=64)
LATENT = LatentAttention(latent_dim=64)
MODELS: dict[str, list[Cache]] = {
    "state first": [STATE, STATE, FULL, STATE, FULL],
    "attention first": [FULL, STATE, STATE, FULL, STATE, STATE, STATE],
    "two kinds of attention": [STATE, WINDOW, WINDOW, FULL, STATE, WINDOW],
    "latent attention": [STATE, LATENT, STATE, LATENT, STATE],
    "small states": [ShortConv(width=64, conv_kernel=3), FULL, FULL],
}


@pytest.fixture(autouse=True)
def natural() -> Iterator[None]:
    with installed():
        yield


def arena_of(name: str, layout: str = "LBNHC") -> Arena:
    layers = tuple(Layer(depth, cache) for depth, cache in enumerate(MODELS[name]))
    model = Model(name=name, model_type="made", num_layers=len(layers), layers=layers)
    with installed():
        engine = Engine(model, Deployment(max_model_len=256), 2**28, layout=layout)
    return Arena(engine, SLABS, "cpu")


def content(arena: Arena) -> Any:
    """All bytes of the arena, as slabs: a row for each."""
    storage = next(iter(arena.views.values())).untyped_storage()
    raw = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    cut = raw.reshape(arena.num_regions, SLABS, -1)
    return np.swapaxes(cut, 0, 1)


lists = st.permutations(range(1, SLABS)).flatmap(
    lambda slabs: st.integers(1, 3).map(
        lambda n: list(zip(slabs[:n], slabs[n : 2 * n], strict=True))
    )
)


@pytest.mark.parametrize("order", ["layers", "tensors"])
@pytest.mark.parametrize("name", MODELS)
@given(copies=lists, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(8))
def test_a_copy_moves_states_whole_and_touches_no_other_slab(
    name: str, order: str, copies: list[tuple[int, int]], seed: int
) -> None:
    arena = arena_of(name)
    slabs = content(arena)
    slabs[:] = np.random.default_rng(seed).integers(0, 256, slabs.shape, np.uint8)
    before = slabs.copy()
    states = [layer for layer in arena.engine.layers.values() if isinstance(layer, StateLayer)]
    caches = [[part.view(torch.uint8) for part in layer.kv_cache] for layer in states]
    expected = [[part[source].clone() for part in it] for it in caches for source, _ in copies]
    views = arena.runner_kv_caches if order == "layers" else list(arena.views.values())
    copy_kv_cache_blocks_inplace(views, SLABS, [KVCacheBlockCopy(*copy) for copy in copies])
    moved = [[part[target] for part in it] for it in caches for _, target in copies]
    for ours, theirs in zip(moved, expected, strict=True):
        assert all(map(torch.equal, ours, theirs))
    untouched = set(range(SLABS)) - {target for _, target in copies}
    assert all((slabs[slab] == before[slab]).all() for slab in untouched)


def test_where_a_slab_is_one_run_of_memory_two_launches_copy_a_whole_list() -> None:
    arena = arena_of("state first")
    slabs = content(arena)
    slabs[:] = np.random.default_rng(0).integers(0, 256, slabs.shape, np.uint8)
    first = arena.runner_kv_caches[:1]
    copy_kv_cache_blocks_inplace(first, SLABS, [KVCacheBlockCopy(1, 2), KVCacheBlockCopy(4, 3)])
    assert (slabs[2] == slabs[1]).all()
    assert (slabs[3] == slabs[4]).all()


def attention_bytes(arena: Arena, slab: int) -> Any:
    """Which bytes of a slab belong to a block of attention, in the shape of `content`."""
    covered = np.zeros(arena.size, bool)
    for number, group in enumerate(arena.config.kv_cache_groups):
        if isinstance(arena.engine.layers[group.layer_names[0]], StateLayer):
            continue
        cut = arena.config.blocks_per_slab_of(number)
        for name in group.layer_names:
            starts, size = arena.ranges(name)
            for start in starts[slab * cut : (slab + 1) * cut]:
                covered[start : start + size] = True
    return np.swapaxes(covered.reshape(arena.num_regions, SLABS, -1), 0, 1)


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC"])
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_worker_told_a_slab_clears_its_attention_bytes(name: str, layout: str) -> None:
    arena = arena_of(name, layout)
    groups = [group for groups in arena.attention_groups for group in groups]
    blocks, layers = arena.kernel_block_sizes, arena.engine.layers
    zeroer = KVBlockZeroer(torch.device("cpu"), groups, blocks, layers, SLABS)
    assert zeroer._meta is not None
    addresses, strides, sizes, *_ = zeroer._meta
    base = next(iter(arena.views.values())).untyped_storage().data_ptr()
    slab = 4
    cleared = np.zeros(arena.size, bool)
    for address, stride, size in zip(
        addresses.tolist(), strides.tolist(), sizes.tolist(), strict=True
    ):
        start = address - base + slab * stride * 4
        cleared[start : start + size * 4] = True
    cleared = np.swapaxes(cleared.reshape(arena.num_regions, SLABS, -1), 0, 1)
    assert (cleared == attention_bytes(arena, slab)).all()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "two kinds of attention"])
def test_a_cpu_worker_that_is_told_the_blocks_of_a_slab_clears_them(name: str) -> None:
    arena = arena_of(name)
    slabs = content(arena)
    slabs[:] = 7
    number = next(
        number
        for number, group in enumerate(arena.config.kv_cache_groups)
        if not isinstance(arena.engine.layers[group.layer_names[0]], StateLayer)
    )
    cut, slab = arena.config.blocks_per_slab_of(number), 4
    runner: Any = SimpleNamespace(
        kv_cache_config=arena.config,
        attn_groups=arena.attention_groups,
        compilation_config=SimpleNamespace(static_forward_context=arena.engine.layers),
        runner_only_attn_layers=set(),
    )
    CPUModelRunner._zero_block_ids(runner, list(range(slab * cut, (slab + 1) * cut)))
    assert ((slabs == 0) == attention_bytes(arena, slab)).all()
