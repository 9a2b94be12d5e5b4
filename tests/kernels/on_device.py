"""What only a GPU can show: streams, graphs, warm-up and pinned memory (``make test-gpu``)."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hybrid_blocks.kernels import (
    Backend,
    BlockTensors,
    copy_blocks,
    cuda,
    gather_blocks,
    move_slabs,
    scatter_blocks,
    usable_backends,
    zero_blocks,
)
from hybrid_blocks.kernels.launch_queue import queue_of
from hybrid_blocks.kernels.sources import whole
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
        zero_blocks(group, dst[2:], backend=backend)
    src.copy_(on_device(5, 6, -1))
    dst.copy_(on_device(7, 8, 9))
    graph.replay()
    for tensor in group.tensors:
        assert torch.equal(raw(tensor[7]), raw(tensor[5]))
        assert torch.equal(raw(tensor[8]), raw(tensor[6]))
        assert not raw(tensor[9]).any()


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


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("max_sms", [None, 1, 8])
def test_pinned_host_memory_holds_the_records(backend: Backend, max_sms: int | None) -> None:
    group = group_of()
    ids = np.random.default_rng(0).permutation(group.num_blocks)[:20].astype(np.int32)
    staging = torch.full((20 * group.record_bytes,), 0xFF, dtype=torch.uint8).pin_memory()
    expected = torch.full_like(staging, 0xFF, device=DEVICE)
    gather_blocks(group, ids, staging, backend=backend, max_sms=max_sms)
    gather_blocks(group, ids, expected, backend="naive")
    torch.cuda.synchronize()
    assert torch.equal(staging, expected.cpu())
    before = [tensor.clone() for tensor in group.tensors]
    zero_blocks(group, ids, backend=backend)
    scatter_blocks(group, ids, staging, backend=backend, max_sms=max_sms)
    for tensor, wanted in zip(group.tensors, before, strict=True):
        assert torch.equal(raw(tensor), raw(wanted))


def test_pageable_host_memory_is_refused() -> None:
    group = group_of(4)
    with pytest.raises(ValueError, match="same device or in pinned host memory"):
        gather_blocks(group, int32s(0), torch.zeros(group.record_bytes, dtype=torch.uint8))


def test_lists_in_two_places_are_refused() -> None:
    group = group_of(4)
    with pytest.raises(
        ValueError, match="src and dst must all be on the host or all on the device"
    ):
        copy_blocks(group, int32s(0), on_device(1))


def test_instructions_convert_every_float_as_the_integer_arithmetic_does() -> None:
    source = Path(__file__).with_name("formats_on_device.cu")
    queue = queue_of(DEVICE, None)
    module = queue.driver.module(whole(source.read_text()))
    function = queue.driver.function(module, "compare_formats")
    wrong = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    run = cuda.Launch(queue, function, [("wrong", "u8", wrong.data_ptr())])
    run((), (4096, 256))
    assert wrong.tolist() == [0, 0, 0, 0]


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
    staging = torch.full((20 * group.record_bytes,), 0xFF, dtype=torch.uint8).pin_memory()
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream(DEVICE))
    gather_blocks(group, ids, staging, backend="copy_engine", stream=stream)
    before = [tensor.clone() for tensor in group.tensors]
    stream.synchronize()
    expected = torch.full_like(staging, 0xFF, device=DEVICE)
    gather_blocks(group, ids, expected, backend="naive")
    assert torch.equal(staging, expected.cpu())
    if direction == "scatter":
        zero_blocks(group, ids)
        stream.wait_stream(torch.cuda.current_stream(DEVICE))
        scatter_blocks(group, ids, staging, backend="copy_engine", stream=stream)
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
    gather_blocks(group, int32s(3), staging, backend=backend, stream=stream)
    del staging
    fresh = torch.zeros(group.record_bytes, dtype=torch.uint8).pin_memory()
    assert fresh.data_ptr() != address
    stream.synchronize()
    assert not fresh.any()


@pytest.mark.parametrize("backend", FAST)
def test_a_compaction_is_one_ordered_launch(backend: Backend) -> None:
    arena = torch.randint(0, 256, (2049 * 8192,), dtype=torch.uint8, device=DEVICE)
    before = arena.view(2049, 8192).clone()
    ids = np.arange(2048, dtype=np.int32)
    move_slabs(arena, 8192, ids + np.int32(1), ids, backend=backend)
    assert torch.equal(arena.view(2049, 8192)[:2048], before[1:])
