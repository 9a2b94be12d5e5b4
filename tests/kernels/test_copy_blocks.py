"""Copied blocks have the bytes of the reference, for all strides, types and lists of ids."""

from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hybrid_blocks.kernels import Backend, BlockTensors, copy_blocks
from hybrid_blocks.kernels.launch_queue import queue_of
from hybrid_blocks.kernels.moves import Order
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    BACKENDS,
    DEVICE,
    FAST,
    FEW,
    OddGroup,
    int32s,
    listed_on_device,
    odd_groups,
    running,
)

naive: Any = import_module("hybrid_blocks.kernels.copy_blocks.naive")


@st.composite
def copies(draw: st.DrawFn) -> tuple[OddGroup, list[int], list[int], Order]:
    group = draw(odd_groups())
    any_block = st.integers(0, group.num_blocks - 1)
    order: Order = draw(st.sampled_from(("list", "gather_then_scatter")))
    dst = draw(st.lists(any_block, max_size=9, unique=order != "list"))
    return group, [draw(any_block) for _ in dst], dst, order


def test_the_reference_gathers_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(naive.MAX_GATHERED, DEVICE.type, 1024)
    state = torch.zeros(16, 4096, dtype=torch.uint8, device=DEVICE)
    src, dst = np.arange(8, dtype=np.int32), np.arange(8, 16, dtype=np.int32)
    kept = torch.Tensor.split
    with mock.patch.object(torch.Tensor, "split", autospec=True, side_effect=kept) as split:
        copy_blocks(BlockTensors([state]), src, dst, order="gather_then_scatter", backend="naive")
    words, step = split.call_args.args
    assert 8 * step * words.element_size() <= 1024


@pytest.mark.parametrize("max_sms", [None, 2])
@pytest.mark.parametrize(
    ("backend", "most"), [*(("naive", it) for it in (1, 100, 1 << 22)), *((it, 0) for it in FAST)]
)
def test_every_version_equals_torch_indexing(
    backend: Backend, most: int, max_sms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(naive.MAX_GATHERED, DEVICE.type, most)

    @FEW
    @given(copies())
    def check(case: tuple[OddGroup, list[int], list[int], Order]) -> None:
        group, src, dst, order = case
        twin = group.twin()
        for tensor in twin.tensors:
            before = tensor.clone()
            for source, target in zip(src, dst, strict=True):
                tensor[target] = (tensor if order == "list" else before)[source].clone()
        options: Any = {"order": order, "max_sms": max_sms, "backend": backend}
        with running(backend):
            copy_blocks(group.blocks, int32s(*src), int32s(*dst), **options)
        assert group.same_bytes(twin)

    check()


@pytest.mark.parametrize("backend", FAST)
def test_padding_in_a_list_on_the_device_is_skipped(backend: Backend) -> None:
    state = torch.randn(4, 40, device=DEVICE)
    before = state.clone()
    group = BlockTensors([state])
    src = torch.tensor([0, -1, 1, 99], dtype=torch.int32, device=DEVICE)
    dst = torch.tensor([2, -1, 4, 3], dtype=torch.int32, device=DEVICE)
    with running(backend):
        run = import_module(f"hybrid_blocks.kernels.copy_blocks.{backend}")
        run.copy_blocks(queue_of(DEVICE, None), group, listed_on_device(src, dst), None)
    assert torch.equal(state[2], before[0])
    assert torch.equal(state[[0, 1, 3]], before[[0, 1, 3]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nbytes", [1, 15, 16, 17, 4095, 4096, 4097, 8191, 8192, 33333])
@pytest.mark.parametrize("pad", [0, 1, 8])
def test_every_size_and_alignment_arrives_whole(backend: Backend, nbytes: int, pad: int) -> None:
    stride = nbytes + pad
    buffer = torch.randint(0, 256, (3 * stride + 1,), dtype=torch.uint8, device=DEVICE)
    before = buffer.clone()
    view = buffer.as_strided((3, nbytes), (stride, 1), 1)
    with running(backend):
        copy_blocks(BlockTensors([view]), int32s(0), int32s(2), backend=backend)
    before[1 + 2 * stride : 1 + 2 * stride + nbytes] = before[1 : 1 + nbytes]
    assert torch.equal(buffer, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_more_than_4_gib_apart_are_reached(backend: Backend) -> None:
    stride = 3 * 2**30 + 256  # virtual memory: only the touched pages exist
    arena = torch.empty(2 * stride + 4096, dtype=torch.uint8, device=DEVICE)
    view = arena.as_strided((3, 4096), (stride, 1), 0)
    view[0] = torch.randint(0, 256, (4096,), dtype=torch.uint8, device=DEVICE)
    with running(backend):
        copy_blocks(BlockTensors([view]), int32s(0, 2), int32s(2, 1), backend=backend)
    assert torch.equal(view[2], view[0])
    assert torch.equal(view[1], view[0])


def test_wrong_lists_are_refused_with_the_reason() -> None:
    group = BlockTensors([torch.zeros(4, 2, device=DEVICE)])
    with pytest.raises(TypeError, match="src must be an int32 array, got int64"):
        copy_blocks(group, np.array([0]), int32s(1))
    with pytest.raises(TypeError, match="src must be an int32 array, got list"):
        copy_blocks(group, [0], int32s(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="src has 2 ids, dst has 1"):
        copy_blocks(group, int32s(0, 1), int32s(2))
    with pytest.raises(ValueError, match="one dimension"):
        copy_blocks(group, int32s(0, 1).reshape(1, 2), int32s(2, 3).reshape(1, 2))
    with pytest.raises(ValueError, match="max_sms is 0"):
        copy_blocks(group, int32s(0), int32s(1), max_sms=0)


def test_blocks_that_overlap_in_memory_are_refused() -> None:
    arena = torch.zeros(16 * 11, device=DEVICE)
    granules = arena.as_strided((10, 32), (16, 1))  # each block lies over the next id too
    with pytest.raises(ValueError, match="blocks 4 and 5 overlap in memory"):
        copy_blocks(BlockTensors([granules]), int32s(4), int32s(5))
    copy_blocks(BlockTensors([granules]), int32s(4), int32s(6))
