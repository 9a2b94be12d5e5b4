"""Streams, graphs, warm-up and pinned memory, which only a GPU can test (``make test-gpu``)."""

import threading

import numpy as np
import pytest
import torch
from hybrid_blocks.kernels import (
    Backend,
    BlockTensors,
    copy_blocks,
    gather_blocks,
    scatter_blocks,
    usable_backends,
)
from kernel_cases import BACKENDS, DEVICE, FAST, int32s, raw


def group_of(blocks: int = 64, *, layers: int = 3) -> BlockTensors:
    conv = [torch.randn(blocks, 4, 1024, device=DEVICE).bfloat16() for _ in range(layers)]
    state = [torch.randn(blocks, 8, 64, 64, device=DEVICE) for _ in range(layers)]
    return BlockTensors(conv + state)


def on_device(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def test_the_device_runs_every_version() -> None:
    assert usable_backends(DEVICE) == ("cupy", "triton", "naive")


@pytest.mark.parametrize("backend", FAST)
def test_a_captured_copy_replays_with_refilled_lists(backend: Backend) -> None:
    group = group_of()
    src, dst = on_device(0, -1, -1), on_device(1, -1, -1)
    copy_blocks(group, src, dst, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copy_blocks(group, src, dst, backend=backend)
    src.copy_(on_device(5, 6, -1))
    dst.copy_(on_device(7, 8, -1))
    graph.replay()
    for tensor in group.tensors:
        assert torch.equal(raw(tensor[7]), raw(tensor[5]))
        assert torch.equal(raw(tensor[8]), raw(tensor[6]))


@pytest.mark.parametrize("backend", FAST)
def test_host_lists_are_refused_while_a_graph_is_captured(backend: Backend) -> None:
    group = group_of()
    copy_blocks(group, int32s(0), int32s(1), backend=backend)
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="host lists cannot be captured"),
        torch.cuda.graph(graph),
    ):
        copy_blocks(group, int32s(0), int32s(1), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("own", [False, True])
def test_a_copy_waits_for_what_its_stream_does_before(backend: Backend, own: bool) -> None:
    group = group_of()
    stream = torch.cuda.Stream(DEVICE) if own else torch.cuda.default_stream(DEVICE)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for tensor in group.tensors:
            tensor[3] = 7
        copy_blocks(group, int32s(3), int32s(9), backend=backend)
        for tensor in group.tensors:
            tensor[9] += 1  # and what comes after waits for the copy
    stream.synchronize()
    for tensor in group.tensors:
        assert (tensor[9] == 8).all()


@pytest.mark.parametrize("backend", FAST)
def test_a_call_returns_before_the_device_is_done_and_allocates_nothing(backend: Backend) -> None:
    group = group_of()
    stream = torch.cuda.Stream(DEVICE)
    for _ in range(3):
        copy_blocks(group, int32s(0, 1), int32s(2, 3), backend=backend, stream=stream)
        stream.synchronize()
    before = torch.cuda.memory_stats(DEVICE)["allocation.all.allocated"]
    for _ in range(20):
        copy_blocks(group, int32s(0, 1), int32s(2, 3), backend=backend, stream=stream)
        stream.synchronize()
    assert torch.cuda.memory_stats(DEVICE)["allocation.all.allocated"] == before
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    copy_blocks(group, int32s(0, 1), int32s(2, 3), backend=backend, stream=stream)
    assert not stream.query()
    stream.synchronize()


PLACES = np.random.default_rng(1).permutation(20).astype(np.int32)


def granule_of(group: BlockTensors) -> int:
    return -(-group.record_bytes // 4096) * 4096


def staging_for(group: BlockTensors) -> torch.Tensor:
    return torch.full((20 * granule_of(group),), 0xFF, dtype=torch.uint8).pin_memory()


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("max_sms", [None, 1, 8])
def test_pinned_host_memory_holds_the_records(backend: Backend, max_sms: int | None) -> None:
    group = group_of()
    ids = np.random.default_rng(0).permutation(group.num_blocks)[:20].astype(np.int32)
    staging, granule = staging_for(group), granule_of(group)
    expected = staging.to(DEVICE)
    gather_blocks(group, ids, staging, PLACES, granule, backend=backend, max_sms=max_sms)
    gather_blocks(group, ids, expected, PLACES, granule, backend="naive")
    torch.cuda.synchronize()
    assert torch.equal(staging, expected.cpu())
    before = [tensor.clone() for tensor in group.tensors]
    for tensor in group.tensors:
        tensor[ids.tolist()] = 0
    scatter_blocks(group, ids, staging, PLACES, granule, backend=backend, max_sms=max_sms)
    for tensor, wanted in zip(group.tensors, before, strict=True):
        assert torch.equal(raw(tensor), raw(wanted))


def test_memory_that_was_registered_counts_as_pinned() -> None:
    group, granule = group_of(4), granule_of(group_of(4))
    memory = np.zeros(2 * granule + 8192, np.uint8)
    staging = torch.from_numpy(memory[-memory.ctypes.data % 4096 :])[: 2 * granule]
    assert torch.cuda.cudart().cudaHostRegister(staging.data_ptr(), staging.numel(), 0) == 0
    try:
        gather_blocks(group, int32s(3), staging, int32s(1), granule)
        torch.cuda.synchronize()
        row = staging[granule : granule + raw(group.tensors[0][3]).numel()]
        assert torch.equal(row, raw(group.tensors[0][3]).cpu())
    finally:
        torch.cuda.cudart().cudaHostUnregister(staging.data_ptr())


def test_pageable_host_memory_is_refused() -> None:
    group = group_of(4)
    record = torch.zeros(group.record_bytes, dtype=torch.uint8)
    with pytest.raises(ValueError, match="same device or in pinned host memory"):
        gather_blocks(group, int32s(0), record, int32s(0), 1)


def test_lists_in_two_places_are_refused() -> None:
    group = group_of(4)
    with pytest.raises(
        ValueError, match="src and dst must all be on the host or all on the device"
    ):
        copy_blocks(group, int32s(0), on_device(1))


def test_a_launch_in_a_new_thread_finds_its_context() -> None:
    group = group_of()
    thread = threading.Thread(
        target=copy_blocks, args=(group, int32s(0), int32s(1)), kwargs={"backend": "cupy"}
    )
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(raw(group.tensors[0][1]), raw(group.tensors[0][0]))


@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_the_copy_engine_moves_the_records(direction: str) -> None:
    group = group_of()
    ids = np.random.default_rng(0).permutation(group.num_blocks)[:20].astype(np.int32)
    staging, granule = staging_for(group), granule_of(group)
    expected = staging.to(DEVICE)
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream(DEVICE))
    gather_blocks(group, ids, staging, PLACES, granule, backend="copy_engine", stream=stream)
    before = [tensor.clone() for tensor in group.tensors]
    stream.synchronize()
    gather_blocks(group, ids, expected, PLACES, granule, backend="naive")
    assert torch.equal(staging, expected.cpu())
    if direction == "scatter":
        for tensor in group.tensors:
            tensor[ids.tolist()] = 0
        stream.wait_stream(torch.cuda.current_stream(DEVICE))
        scatter_blocks(group, ids, staging, PLACES, granule, backend="copy_engine", stream=stream)
        stream.synchronize()
        for tensor, wanted in zip(group.tensors, before, strict=True):
            assert torch.equal(raw(tensor), raw(wanted))


@pytest.mark.parametrize("backend", FAST)
def test_a_staging_buffer_may_be_dropped_when_the_call_returns(backend: Backend) -> None:
    group = group_of()
    stream = torch.cuda.Stream(DEVICE)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    staging = torch.zeros(group.record_bytes, dtype=torch.uint8).pin_memory()
    address = staging.data_ptr()
    gather_blocks(group, int32s(3), staging, int32s(0), 1, backend=backend, stream=stream)
    del staging
    fresh = torch.zeros(group.record_bytes, dtype=torch.uint8).pin_memory()
    assert fresh.data_ptr() != address
    stream.synchronize()
    assert not fresh.any()
