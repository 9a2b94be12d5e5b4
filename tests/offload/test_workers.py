"""Region and workers: bytes go down and come up by rank, layer and block."""

import os
import uuid
from collections import deque
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.offload import chunk_copies, gpu_worker
from hybrid_blocks.offload.chunk_copies import ChunkCopies
from hybrid_blocks.offload.cpu_worker import CpuWorker
from hybrid_blocks.offload.gpu_worker import _Handler
from hybrid_blocks.offload.manager.host import HostLoadStoreSpec
from hybrid_blocks.offload.region import Header, Region
from hybrid_blocks.vllm.log import logger
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu import gpu_worker as vllms_worker

# Attention uses all of a page of the first of two tensors, a state 48 bytes of both.
HEADER = Header(rank_bytes=[64, 96], layout={"platform": "cpu"})


def caches(num_blocks: int) -> CanonicalKVCaches:
    tensors = [torch.randint(-128, 127, (num_blocks, 64), dtype=torch.int8) for _ in range(2)]
    return CanonicalKVCaches(
        tensors=[CanonicalKVCacheTensor(tensor, 64) for tensor in tensors],
        group_data_refs=[
            [CanonicalKVCacheRef(0, 64)],
            [CanonicalKVCacheRef(0, 48), CanonicalKVCacheRef(1, 48)],
        ],
    )


@pytest.fixture
def engine_id() -> str:
    return f"test/{uuid.uuid4()}"


def test_scheduler_and_workers_share_a_region_that_has_no_name_afterwards(engine_id: str) -> None:
    rank0 = Region.create(engine_id, 1 << 20, 0, HEADER)
    rank1 = Region.create(engine_id, 1 << 20, 1, HEADER)
    scheduler = Region.join(engine_id, 1 << 20, num_ranks=2)
    assert scheduler.header() == HEADER
    rank1.bytes[-1] = 7
    assert (rank0.bytes[-1], scheduler.bytes[-1]) == (7, 7)
    with pytest.raises(HybridBlocksError, match="no worker of engine"):
        Region.join(engine_id, 1 << 20, num_ranks=2)


def test_workers_on_another_machine_are_refused(engine_id: str) -> None:
    """Their regions are files of their own."""
    here = [Region.create(engine_id, 1 << 20, rank, HEADER) for rank in (0, 2)]
    with pytest.raises(InvalidArgumentError, match=r"ranks 1, 3 of 4 .* one machine"):
        Region.join(engine_id, 1 << 20, num_ranks=4)
    with pytest.raises(HybridBlocksError, match="no worker of engine"):
        Region.join(engine_id, 1 << 20, num_ranks=4)
    assert len(here) == 2


def test_a_region_that_does_not_fit_says_how_much_is_free(engine_id: str) -> None:
    free = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    told = r"does not fit into /dev/shm, which has .* free"
    with pytest.raises(InvalidArgumentError, match=told):
        Region.create(engine_id, free * 2, 0, HEADER)
    with pytest.raises(HybridBlocksError):
        Region.join(engine_id, 1 << 20, num_ranks=2)


def test_ranks_store_and_load_their_shares(engine_id: str) -> None:
    slots = {0: [0, 4096], 1: [8192]}
    device = GPULoadStoreSpec([1, 3, 2], group_sizes=[2, 1], block_indices=[0, 1])
    host = HostLoadStoreSpec([*slots[0], *slots[1]])
    workers = []
    for rank in range(2):
        kv_caches = caches(8)
        region = Region.create(engine_id, 1 << 20, rank, HEADER)
        worker = CpuWorker(kv_caches, region, rank)
        workers.append(worker)
        before = [it.tensor.clone() for it in kv_caches.tensors]
        worker.submit_store(1, device, host)
        stored = region.bytes[4096 + rank * 64 : 4096 + rank * 64 + 64]
        assert (stored.view(np.int8) == before[0][3].numpy()).all()
        for it in kv_caches.tensors:
            it.tensor.zero_()
        # The chunks come up in other blocks.
        up = GPULoadStoreSpec([5, 6, 7], group_sizes=[2, 1], block_indices=[0, 1])
        worker.submit_load(2, host, up)
        assert (kv_caches.tensors[0].tensor[5:7] == before[0][[1, 3]]).all()
        for tensor, old in zip(kv_caches.tensors, before, strict=True):
            assert (tensor.tensor[7, :48] == old[2, :48]).all()
            assert (tensor.tensor[7, 48:] == 0).all()
        results = worker.get_finished()
        told = [(it.job_id, it.success, it.transfer_size) for it in results]
        assert told == [(1, True, 2 * 64 + 96), (2, True, 2 * 64 + 96)]
        assert worker.get_finished() == []
    Region.join(engine_id, 1 << 20, num_ranks=2)


def test_a_gpu_copies_between_the_same_bytes() -> None:
    """The addresses that the GPU's handler fills are those that the CPU's worker copies."""
    handler = object.__new__(_Handler)
    kv_caches = caches(8)
    handler.layer_refs_per_group = kv_caches.group_data_refs
    handler.gpu_to_cpu = True
    handler.src_tensors = [it.tensor for it in kv_caches.tensors]
    handler._base, handler._rank = 1 << 32, 1
    src, dst, sizes = (np.zeros(8, dtype=np.int64) for _ in range(3))
    blocks, offsets = np.array([2, 3], dtype=np.int32), np.array([8192, 4096])
    end, num_bytes = handler._fill_natural_ops(1, blocks, offsets, 2, 0, 0, src, dst, sizes, 1)
    assert (end, num_bytes) == (5, 2 * 96)
    first, second = (it.tensor.data_ptr() for it in kv_caches.tensors)
    assert src[1:5].tolist() == [first + 128, first + 192, second + 128, second + 192]
    start = (1 << 32) + 96
    expected = [start + 8192, start + 4096, start + 8192 + 48, start + 4096 + 48]
    assert dst[1:5].tolist() == expected
    assert sizes.tolist() == [0, 48, 48, 48, 48, 0, 0, 0]


def test_layers_that_share_bytes_are_copied_one_after_another(engine_id: str) -> None:
    """No list of blocks describes two layers in the same bytes; each alone is described."""
    kv_caches = caches(8)
    kv_caches.group_data_refs[1][1] = CanonicalKVCacheRef(0, 32)
    held = kv_caches.tensors[0].tensor.clone()
    region = Region.create(engine_id, 1 << 20, 0, HEADER)
    copies = ChunkCopies(kv_caches, torch.from_numpy(region.bytes), 0)
    assert [len(parts) for parts in copies._groups] == [1, 2]
    assert copies.rank_bytes == [64, 80]
    blocks, offsets = np.array([3], np.int32), np.array([4096])
    copies.store(1, blocks, offsets)
    stored = region.bytes[4096 : 4096 + 80].view(np.int8).tolist()
    assert stored == [*held[3, :48].tolist(), *held[3, :32].tolist()]
    kv_caches.tensors[0].tensor.zero_()
    copies.load(1, blocks, offsets)
    assert torch.equal(kv_caches.tensors[0].tensor[3, :48], held[3, :48])
    copies.close()


def test_a_chunk_between_two_places_is_an_error(engine_id: str) -> None:
    region = Region.create(engine_id, 1 << 20, 0, HEADER)
    copies = ChunkCopies(caches(8), torch.from_numpy(region.bytes), 0)
    with pytest.raises(HybridBlocksError, match="byte 4097 of the region, which is no place of"):
        copies.store(0, np.array([1]), np.array([4097]))
    copies.close()


def test_a_try_leaves_block_0_as_it_was_and_sees_wrong_bytes(
    engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv_caches = caches(8)
    before = [it.tensor.clone() for it in kv_caches.tensors]
    region = Region.create(engine_id, 1 << 20, 0, HEADER)
    copies = ChunkCopies(kv_caches, torch.from_numpy(region.bytes), 0)
    memory = torch.zeros(copies.largest_record, dtype=torch.uint8)
    assert len(memory) == 96
    copies.try_out(memory)
    for it, held in zip(kv_caches.tensors, before, strict=True):
        assert torch.equal(it.tensor, held)
    monkeypatch.setattr(chunk_copies, "scatter_blocks", lambda *_: None)
    with pytest.raises(RuntimeError, match="64 bytes came back from the device as others"):
        copies.try_out(memory)
    copies.close()


def handler_of(kv_caches: CanonicalKVCaches, copies: ChunkCopies, *, is_store: bool) -> Any:
    """Make a handler over tensors of the CPU; vLLM's own constructor wants those of a GPU."""
    handler: Any = object.__new__(_Handler)
    handler.gpu_to_cpu = is_store
    handler.layer_refs_per_group = kv_caches.group_data_refs
    handler._canonical_copy_plans = None
    handler.src_blocks_per_chunk = handler.dst_blocks_per_chunk = 1
    handler._transfers, handler._transfer_events = deque(), {}
    handler._stream_pool, handler._buffer_pool = [mock.Mock()], []
    handler._event_pool = [mock.Mock(), mock.Mock()]
    handler._move_by(copies)
    return handler


@pytest.mark.parametrize("is_store", [True, False])
def test_a_gpus_handler_lets_the_kernels_copy_its_groups(
    engine_id: str, is_store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own transfer runs, over streams and events that do nothing."""
    platform = mock.Mock()
    platform.stream.return_value = nullcontext()
    platform.is_xpu.return_value = False
    monkeypatch.setattr(vllms_worker, "current_platform", platform)
    kv_caches = caches(8)
    region = Region.create(engine_id, 1 << 20, 0, HEADER)
    region.bytes[:] = np.random.default_rng(0).integers(0, 256, region.num_bytes, np.uint8)
    before = [it.tensor.clone() for it in kv_caches.tensors], region.bytes.copy()
    copies = ChunkCopies(kv_caches, torch.from_numpy(region.bytes), 0)
    handler = handler_of(kv_caches, copies, is_store=is_store)
    device = GPULoadStoreSpec([1, 3, 2], group_sizes=[2, 1], block_indices=[0, 1])
    host = HostLoadStoreSpec([0, 4096, 8192])
    for job in range(2):
        assert handler.transfer_async(job, *((device, host) if is_store else (host, device)))
        assert handler._transfers[-1].num_bytes == 2 * 64 + 96
        handler._stream_pool.append(mock.Mock())
        handler._event_pool += [mock.Mock(), mock.Mock()]
    first, second = (it.tensor.numpy().view(np.uint8) for it in kv_caches.tensors)
    assert (region.bytes[:64] == first[1]).all()
    assert (region.bytes[4096 : 4096 + 64] == first[3]).all()
    assert (region.bytes[8192 : 8192 + 96] == np.append(first[2, :48], second[2, :48])).all()
    kept = [
        torch.equal(it.tensor, old) for it, old in zip(kv_caches.tensors, before[0], strict=True)
    ]
    assert kept == [is_store, is_store]
    assert (region.bytes == before[1]).all() != is_store
    copies.close()


@pytest.mark.parametrize(
    ("is_pinned", "is_cuda", "versions", "fails", "why"),
    [
        (False, True, ("cupy", "naive"), None, "the region is not pinned"),
        (True, False, ("cupy", "naive"), None, "they do not run on rocm"),
        (True, True, ("naive",), None, "neither CuPy nor Triton is installed"),
        (True, True, ("cupy", "naive"), OSError("no libnvrtc"), "OSError: no libnvrtc"),
        (True, True, ("cupy", "naive"), None, ""),
    ],
)
def test_vllms_function_copies_where_the_kernels_cannot(
    *,
    engine_id: str,
    is_pinned: bool,
    is_cuda: bool,
    versions: tuple[str, ...],
    fails: Exception | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda words, *of: told.append(words % of))
    platform = mock.Mock(device_type="cuda" if is_cuda else "rocm")
    platform.is_cuda.return_value = is_cuda
    monkeypatch.setattr(gpu_worker, "current_platform", platform)
    monkeypatch.setattr(gpu_worker, "usable_backends", lambda _: versions)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(ChunkCopies, "try_out", mock.Mock(side_effect=fails))
    region = Region.create(engine_id, 1 << 20, 0, HEADER)
    copies = gpu_worker._by_kernels(caches(8), region, 0, is_pinned=is_pinned)
    assert (copies is None) == bool(why)
    assert [line.partition(": ")[2] for line in told] == ([f"{why}."] if why else [])
