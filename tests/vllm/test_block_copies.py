"""The copies of blocks in vLLM's workers: the bytes are those that vLLM's own function leaves."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hybrid_blocks.kernels import copy_blocks as kernel
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.worker import block_copies, kernel_copies
from hypothesis import given, settings
from hypothesis import strategies as st
from natural.arena import Arena
from natural.engine import installed
from natural.test_copies import MODELS, SLABS, arena_of
from torch.profiler import ProfilerActivity, profile
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.worker import gpu_model_runner, utils
from vllm.v1.worker.gpu import model_runner as second_model_runner

MIB = 2**20
# In a tuple, as the plugin replaces what modules name.
FUNCTIONS = (
    block_copies.vllm_copy_kv_cache_blocks_inplace,
    block_copies.copy_kv_cache_blocks_inplace,
)


def vllms(caches: Any, num_blocks: int, copies: Any) -> None:
    FUNCTIONS[0](caches, num_blocks, copies)


def ours(caches: Any, num_blocks: int, copies: Any) -> None:
    FUNCTIONS[1](caches, num_blocks, copies)


@pytest.fixture(autouse=True)
def vllms_own(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the calls that go to vLLM's own function."""
    calls: list[int] = []

    def counted(caches: Any, num_blocks: int, copies: Any) -> None:
        calls.append(len(copies))
        vllms(caches, num_blocks, copies)

    monkeypatch.setattr(block_copies, "vllm_copy_kv_cache_blocks_inplace", counted)
    return calls


@dataclass
class Caches:
    """A runner's tensors in buffers of its own; ``twin`` makes the same over copied bytes."""

    num_blocks: int
    buffers: list[torch.Tensor]
    layers: list[tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int]]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [
            torch.empty(0, dtype=dtype).set_(
                self.buffers[at].untyped_storage(), offset, shape, strides
            )
            for at, dtype, shape, strides, offset in self.layers
        ]

    def twin(self) -> "Caches":
        return Caches(self.num_blocks, [buffer.clone() for buffer in self.buffers], self.layers)


DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int16)


@st.composite
def caches(draw: st.DrawFn) -> Caches:
    """Layers that share a storage block by block or region by region, with and without padding."""
    num_blocks, made = draw(st.integers(2, 9)), Caches(0, [], [])
    made.num_blocks = num_blocks
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(DTYPES))
        kernel_blocks, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        width, padding = draw(st.sampled_from((3, 16, 130))), draw(st.sampled_from((0, 0, 2, 5)))
        num_layers = draw(st.integers(1, 3))
        page = heads * width + padding
        by_block = draw(st.booleans())
        stride = page * (num_layers if by_block else 1)
        apart = page if by_block else page * num_blocks * kernel_blocks
        start = draw(st.sampled_from((0, 0, 4)))
        size = page * num_layers * num_blocks * kernel_blocks + start
        size += draw(st.sampled_from((0, 0, 7)))
        filled = torch.full((size * dtype.itemsize,), 0xFF, dtype=torch.uint8)
        if draw(st.booleans()):
            seed = torch.Generator().manual_seed(draw(st.integers(0, 999)))
            filled.random_(0, 256, generator=seed)
        shape = (num_blocks * kernel_blocks, heads, width)
        for layer in range(num_layers):
            place = (shape, (stride, width, 1), start + layer * apart)
            made.layers.append((len(made.buffers), dtype, *place))
        made.buffers.append(filled)
    # Layers that share their cache have the same tensor.
    made.layers += draw(st.lists(st.sampled_from(made.layers), max_size=2))
    return made


@given(caches(), st.data())
@settings(max_examples=examples(60))
def test_all_bytes_are_those_that_vllms_own_function_leaves(made: Caches, data: Any) -> None:
    blocks = range(made.num_blocks)
    targets = data.draw(st.lists(st.sampled_from(blocks), unique=True, min_size=1))
    sources = [data.draw(st.sampled_from(blocks)) for _ in targets]
    copies = [KVCacheBlockCopy(*pair) for pair in zip(sources, targets, strict=True)]
    twin = made.twin()
    tensors = made.tensors
    assert kernel_copies.described(tensors, made.num_blocks).group is not None
    ours(tensors, made.num_blocks, copies)
    vllms(twin.tensors, made.num_blocks, copies)
    assert all(map(torch.equal, made.buffers, twin.buffers))


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC"])
@pytest.mark.parametrize("name", MODELS)
def test_the_memory_of_level_natural_is_copied_by_the_kernels(
    name: str, layout: str, vllms_own: list[int]
) -> None:
    with installed():
        first, second = (arena_of(name, layout) for _ in range(2))
    for made in (first, second):
        content = np.random.default_rng(0).integers(0, 256, made.size, np.uint8)
        bytes_of(made).copy_(torch.from_numpy(content))
    copies = [KVCacheBlockCopy(1, 2), KVCacheBlockCopy(6, 4), KVCacheBlockCopy(1, 5)]
    ours(first.runner_kv_caches, SLABS, copies)
    vllms(second.runner_kv_caches, SLABS, copies)
    assert torch.equal(bytes_of(first), bytes_of(second))
    assert vllms_own == []


def bytes_of(arena: Arena) -> torch.Tensor:
    storage = next(iter(arena.views.values())).untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def test_layers_that_share_bytes_move_them_once_in_a_chain_too() -> None:
    """vLLM's function would gather shared bytes again after the first layer had written them."""
    storage = torch.arange(45, dtype=torch.uint8)[:40].reshape(4, 10)
    layers = [storage[:, 1:5], storage[:, 3:8]]  # no layer owns bytes 0, 8 and 9 of a block
    expected = storage.clone()
    expected[1:4, 1:8] = storage[0:3, 1:8]
    ours(layers, 4, [KVCacheBlockCopy(block, block + 1) for block in range(3)])
    assert torch.equal(storage, expected)


def arena(num_blocks: int, block_bytes: int) -> torch.Tensor:
    return torch.zeros(num_blocks, block_bytes, dtype=torch.uint8)


def most_allocated(function: Any, *arguments: Any) -> int:
    """Return the most bytes that a call held at once beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function(*arguments)
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def test_a_step_with_36_copies_takes_little_memory_beside_the_arena() -> None:
    caches = [arena(37, 2 * MIB)]
    copies = [KVCacheBlockCopy(block, block + 1) for block in range(36)]
    assert most_allocated(vllms, caches, 37, copies) >= 72 * MIB
    caches[0].copy_(torch.arange(37, dtype=torch.uint8)[:, None])
    assert 0 < most_allocated(ours, caches, 37, copies) <= 16 * MIB
    assert caches[0][:, 0].tolist() == caches[0][:, -1].tolist() == [0, *range(36)]


def test_tensors_that_cannot_be_described_are_vllms_to_copy(
    vllms_own: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = torch.arange(64, dtype=torch.float32)
    overlapping = [storage.as_strided((4, 8), (4, 1))]
    assert kernel_copies.described(overlapping, 4).group is None
    told: list[str] = []
    monkeypatch.setattr(logger, "warning_once", lambda *words: told.append(words[1]))
    ours(overlapping, 4, [KVCacheBlockCopy(0, 3)])
    ours(overlapping, 4, [KVCacheBlockCopy(1, 2)])
    assert vllms_own == [1, 1]
    assert told[0] == told[1]
    assert "share bytes" in told[0]


def test_a_block_that_is_written_twice_is_vllms_to_copy(vllms_own: list[int]) -> None:
    ours([arena(4, 8)], 4, [KVCacheBlockCopy(0, 3), KVCacheBlockCopy(1, 3)])
    assert vllms_own == [2]


def test_a_compiler_that_is_missing_leaves_the_copies_to_vllm(
    vllms_own: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("nvrtcCreateProgram failed")

    caches = [arena(4, 8)]
    caches[0][0] = 7
    monkeypatch.setattr(kernel_copies, "copy_blocks", broken)
    ours(caches, 4, [KVCacheBlockCopy(0, 3)])
    monkeypatch.setattr(kernel_copies, "copy_blocks", kernel)
    ours(caches, 4, [KVCacheBlockCopy(0, 2)])
    assert vllms_own == [1, 1]
    assert caches[0][2].tolist() == caches[0][3].tolist() == [7] * 8


def test_nothing_to_copy_is_nothing_to_describe() -> None:
    ours([arena(4, 8)], 4, [])
    ours([], 4, [KVCacheBlockCopy(0, 1)])


def test_tensors_are_described_once_and_not_kept_alive() -> None:
    gc.collect()
    caches = [arena(4, 8), arena(4, 16)]
    first = kernel_copies.described(caches, 4)
    assert kernel_copies.described(caches, 4) is first
    assert kernel_copies.described(caches, 2) is not first
    held = len(kernel_copies._known())
    del caches, first
    gc.collect()
    assert len(kernel_copies._known()) == held - 1


@pytest.fixture
def plugin() -> Iterator[None]:
    install.install(Level.MANAGER)
    yield
    install.uninstall()


@pytest.mark.usefixtures("plugin")
def test_both_model_runners_copy_by_this_packages_kernels() -> None:
    for module in (utils, gpu_model_runner, second_model_runner):
        assert module.copy_kv_cache_blocks_inplace is FUNCTIONS[1]


def test_without_the_plugin_vllms_workers_copy_by_vllms_function() -> None:
    for module in (utils, gpu_model_runner, second_model_runner):
        assert module.copy_kv_cache_blocks_inplace is FUNCTIONS[0]
