"""Copies between a GPU's cache and the region: vLLM's handlers, with this package's kernels."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.platforms import current_platform
from vllm.utils.torch_utils import PIN_MEMORY
from vllm.v1.kv_offload.base import CanonicalKVCaches
from vllm.v1.kv_offload.cpu.gpu_worker import (
    CPUOffloadingWorker,
    SingleDirectionOffloadingHandler,
    compute_sub_block_ptrs,
)
from vllm.v1.kv_offload.cpu.host_register import host_register, host_unregister

from hybrid_blocks.kernels import usable_backends
from hybrid_blocks.offload.chunk_copies import ChunkCopies
from hybrid_blocks.offload.region import Region
from hybrid_blocks.vllm.log import logger


class _Handler(SingleDirectionOffloadingHandler):
    """vLLM's transfers of chunks that have the sizes of their groups.

    Streams, events and their order are vLLM's. ``copies`` moves the bytes, one launch a group;
    without it vLLM's function does, by an address for each layer and block.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        share: int,
        rank: int,
        copies: ChunkCopies | None,
        **settings: Any,
    ) -> None:
        # vLLM's class wants host tensors whose pages are as wide as the device's; none is read.
        device = [
            tensor.tensor.view(torch.int8).view(-1, tensor.page_size_bytes)
            for tensor in kv_caches.tensors
        ]
        super().__init__(
            gpu_tensors=device,
            cpu_tensors=[torch.empty((0, tensor.shape[1]), dtype=torch.int8) for tensor in device],
            blocks_per_chunk=1,
            layer_refs_per_group=kv_caches.group_data_refs,
            **settings,
        )
        self._base = share
        self._rank = rank
        self._fill_group_ops = self._fill_natural_ops
        if copies is not None:
            self._move_by(copies)

    def _fill_natural_ops(  # noqa: PLR0917 - vLLM's signature
        self,
        g_idx: int,
        group_src: npt.NDArray[Any],
        group_dst: npt.NDArray[Any],
        group_size: int,
        src_skip_count: int,
        dst_skip_count: int,
        all_src: npt.NDArray[np.int64],
        all_dst: npt.NDArray[np.int64],
        all_sizes: npt.NDArray[np.int64],
        op_idx: int,
    ) -> tuple[int, int]:
        """Fill the copies of a group: one for each layer and block."""
        del src_skip_count, dst_skip_count  # 0 where a chunk is a block
        refs = self.layer_refs_per_group[g_idx]
        rank_bytes = sum(ref.page_size_bytes for ref in refs)
        blocks, offsets = (group_src, group_dst) if self.gpu_to_cpu else (group_dst, group_src)
        device = self.src_tensors if self.gpu_to_cpu else self.dst_tensors
        on_device, on_host = (all_src, all_dst) if self.gpu_to_cpu else (all_dst, all_src)
        address = self._base + offsets.astype(np.int64) + self._rank * rank_bytes
        for ref in refs:
            end = op_idx + group_size
            compute_sub_block_ptrs(blocks, 1, on_device[op_idx:end], device[ref.tensor_idx])
            on_host[op_idx:end] = address
            all_sizes[op_idx:end] = ref.page_size_bytes
            address = address + ref.page_size_bytes
            op_idx = end
        return op_idx, group_size * rank_bytes

    def _move_by(self, copies: ChunkCopies) -> None:
        """Let ``copies`` move the bytes, on the stream on which vLLM's function would."""
        noted: list[tuple[int, npt.NDArray[Any], npt.NDArray[Any]]] = []
        copy = copies.store if self.gpu_to_cpu else copies.load

        def note(
            number: int, group_src: npt.NDArray[Any], group_dst: npt.NDArray[Any], **_: Any
        ) -> tuple[int, int]:
            blocks, chunks = (group_src, group_dst) if self.gpu_to_cpu else (group_dst, group_src)
            noted.append((number, blocks, chunks))
            # One copy, however many there are: vLLM calls its function where there is any.
            return 1, len(blocks) * copies.rank_bytes[number]

        def run(*_addresses: Any, **_settings: Any) -> None:
            while noted:
                copy(*noted.pop())

        self._fill_group_ops = note  # type: ignore[assignment] # vLLM names all it gives
        self._swap_blocks_batch = run


class GpuWorker(CPUOffloadingWorker):
    """vLLM's worker over a region of chunks of natural size."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: Region, rank: int) -> None:
        """Copy between ``kv_caches`` and the share of ``rank`` in the region's chunks."""
        pinned = _Pinned(region)
        self._mmap_region = pinned  # type: ignore[assignment]
        settings: dict[str, Any] = {
            "kv_caches": kv_caches,
            "share": pinned.address,
            "rank": rank,
            "copies": _by_kernels(kv_caches, region, rank, is_pinned=pinned.is_pinned),
            "host_memory_is_pinned": pinned.is_pinned,
        }
        self._store_handler = _Handler(gpu_to_cpu=True, **settings)
        self._load_handler = _Handler(gpu_to_cpu=False, **settings)
        self._expedited_load_handler = _Handler(gpu_to_cpu=False, **settings)


def _by_kernels(
    kv_caches: CanonicalKVCaches, region: Region, rank: int, *, is_pinned: bool
) -> ChunkCopies | None:
    """Return copies by this package's kernels where they run here; else the log says why not."""
    device = kv_caches.tensors[0].tensor.device
    why = ""
    if not is_pinned:
        why = "the region is not pinned"
    elif not current_platform.is_cuda():
        why = f"they do not run on {current_platform.device_type}"
    elif (version := usable_backends(device)[0]) == "naive":
        why = "neither CuPy nor Triton is installed"
    else:
        try:
            copies = ChunkCopies(kv_caches, torch.from_numpy(region.bytes), rank)
            copies.try_out(torch.zeros(copies.largest_record, dtype=torch.uint8, pin_memory=True))
        except Exception as error:  # noqa: BLE001 - a compiler, a library, a driver
            why = f"{type(error).__name__}: {error}"
        else:
            logger.info("hybrid_blocks copies chunks by its own kernels (%s).", version)
            return copies
    logger.warning("vLLM's own function copies chunks, not hybrid_blocks' kernels: %s.", why)
    return None


class _Pinned:
    """A region that the GPU may read and write at its full rate."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self.address = int(region.bytes.ctypes.data)
        self.is_pinned = PIN_MEMORY and host_register(self.address, region.num_bytes)
        if not self.is_pinned:
            logger.warning(
                "The region of %d bytes cannot be pinned; copies between GPU and host are slower.",
                region.num_bytes,
            )

    def cleanup(self) -> None:
        """Unpin and let go."""
        if self.is_pinned:
            host_unregister(self.address)
            self.is_pinned = False
        self._region.cleanup()
