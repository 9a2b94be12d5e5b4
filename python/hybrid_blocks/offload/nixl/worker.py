"""The worker side of pulls by NIXL: blocks in slabs are read by the ids of each group."""

import math
import time
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.utils import TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import _region_sort_key
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    NixlAgentMetadata,
    NixlHandshakePayload,
    compute_nixl_compatibility_hash,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.nixl.params import NO_ENGINE
from hybrid_blocks.offload.nixl.stalled import StalledReads, timeout_of
from hybrid_blocks.offload.slabs.rows import rows_of
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.specs import is_state, window_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
        NixlConnectorMetadata,
        RemoteMeta,
        ReqMeta,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import TPMapping

_IN_SLABS = "pull of blocks in slabs, 1"
"""How engines at level ``natural`` transfer; a part of what both sides compare."""

_HEARTBEATS_PER_EXTENSION = 4
"""vLLM renews a lease by two thirds of it, and sends a heartbeat each sixth of it."""


class HybridNixlWorker(NixlPullConnectorWorker):
    """vLLM's worker. A read that it cannot begin fails, and the engine goes on.

    The log says why an engine at level ``natural`` and another one do not pair.
    """

    is_in_slabs = False

    def _read_blocks_for_req(self, req_id: str, meta: "ReqMeta") -> None:
        assert meta.remote is not None
        if meta.remote.engine_id == NO_ENGINE:
            self._fail(req_id)
            return
        try:
            self._check_read(meta)
            super()._read_blocks_for_req(req_id, meta)
        except Exception as error:
            is_known = isinstance(error, HybridBlocksError)
            logger.warning(
                "hybrid_blocks: request %s reads nothing of engine %s: %s",
                req_id,
                meta.remote.engine_id,
                error if is_known else f"{type(error).__name__}: {error}",
                exc_info=not is_known,
            )
            self._fail(req_id)

    def _check_read(self, meta: "ReqMeta") -> None:
        """Raise ``HybridBlocksError`` if the blocks that a request names cannot be read."""

    def _fail(self, req_id: str) -> None:
        """Let a request's read fail once what was begun of it has ended."""
        self.xfer_stats.record_failed_transfer()  # type: ignore[no-untyped-call]
        self._handle_failed_transfer(
            req_id, None, self._recv_failures, record_failed_transfer=False
        )

    def _hash(self, *, is_in_slabs: bool) -> str:
        mode = _IN_SLABS if is_in_slabs else self._TRANSFER_MODE
        return str(
            compute_nixl_compatibility_hash(self.vllm_config, self.backend_name, transfer_mode=mode)
        )

    def _nixl_handshake(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._nixl_handshake(*args, **kwargs)
        except RuntimeError as error:
            # The hash of an engine that differs only in its use of slabs is computable here.
            if self._hash(is_in_slabs=not self.is_in_slabs) not in str(error):
                raise
            which = "reads a" if self.is_in_slabs else "computed the"
            raise HybridBlocksError(
                f"the engine that {which} prompt runs at level natural, the other does not, and "
                "their blocks have other sizes; set HYBRID_BLOCKS=natural and HybridNixlConnector "
                "on both, or HYBRID_BLOCKS=manager on both"
            ) from error


class SlabNixlWorker(HybridNixlWorker):
    """Reads blocks of slabs into blocks of slabs, whose number may be another on each side.

    A region is a layer. Those of attention come first, then those of states. Ids of each group
    count from the start of each of its layers, as they do in the block tables.
    """

    is_in_slabs = True

    def __init__(self, vllm_config: "VllmConfig", engine_id: str, kv_cache_config: Any) -> None:
        """Make the agent.

        Raises:
            HybridBlocksError: blocks would be copied through host memory, or are not the kernels'.
        """
        self._follow_reads(timeout_of(vllm_config.kv_transfer_config))
        self._renewals: dict[tuple[str, str], tuple[float, float]] = {}
        super().__init__(vllm_config, engine_id, kv_cache_config)
        if self.use_host_buffer:
            raise HybridBlocksError(
                f'kv_buffer_device "{self.kv_buffer_device}" beside {self.device_type}, at level '
                f'natural; set "kv_buffer_device": "{self.device_type}", or HYBRID_BLOCKS=manager'
            )
        if self._physical_blocks_per_logical_kv_block != 1:
            raise HybridBlocksError(
                f"kernels read blocks of {self.block_size} tokens, and level natural planned "
                "others; leave out --block-size, or set HYBRID_BLOCKS=manager"
            )

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Note where the blocks of each layer lie, and what another engine needs to read them."""
        config: Any = self.kv_cache_config
        self.transfer_topo = TransferTopology(
            tp_rank=self.transfer_tp_rank,
            tp_size=self.transfer_tp_size,
            block_size=self.block_size,
            engine_id=self.engine_id,
            is_mla=self.use_mla,
            total_num_kv_heads=1 if self.use_mla else self.model_config.get_total_num_kv_heads(),
            attn_backends=self.attn_backends,
            dcp_size=self.dcp_size,
            tensor_shape=None if self._has_mamba else next(iter(kv_caches.values())).shape,
            is_mamba=self._has_mamba,
        )
        self.compat_hash = self._hash(is_in_slabs=True)
        layers = sorted(
            rows_of(config, range(len(config.kv_cache_groups)), kv_caches),
            key=lambda it: (self._is_state(it.layer), *_region_sort_key(it.layer)),
        )
        specs = [self._layer_specs[layer.layer] for layer in layers]
        self._ssm_region_indices = [
            place for place, layer in enumerate(layers) if self._is_state(layer.layer)
        ]
        self._num_attention = len(layers) - len(self._ssm_region_indices)
        self._region_is_mla = [isinstance(spec, MLAAttentionSpec) for spec in specs]
        addresses = [layer.rows.data_ptr() for layer in layers]
        self.block_len_per_layer = [layer.page for layer in layers]
        self.block_stride_per_layer = [layer.rows.stride(0) for layer in layers]
        self.region_group_ids = [layer.group for layer in layers]
        self.region_names = [layer.layer for layer in layers]
        self.region_num_blocks = [len(layer.rows) for layer in layers]
        self.num_regions = len(layers)
        self.num_descs = sum(self.region_num_blocks[: self._num_attention])
        self._uses_region_group_mapping = True
        self._set_region_layers([])
        storage = layers[0].rows.untyped_storage()
        is_host = layers[0].rows.device.type == "cpu"
        memory = "DRAM" if is_host else self.nixl_memory_type
        self.device_id = 0 if is_host else max(layers[0].rows.get_device(), 0)
        self.region_mem_types = [memory] * self.num_regions
        descs = self.nixl_wrapper.get_reg_descs(
            [(storage.data_ptr(), storage.nbytes(), self.device_id, "")], memory
        )
        self.nixl_wrapper.register_memory(descs, backends=self.nixl_backends)
        self._registered_descs.append(descs)
        self.device_kv_caches = kv_caches
        self.kv_caches_base_addr[self.engine_id][self.tp_rank] = addresses
        self.dst_num_blocks[self.engine_id] = self.num_blocks
        self.dst_region_num_blocks[self.engine_id] = self.region_num_blocks
        self.dst_region_group_ids[self.engine_id] = self.region_group_ids
        self.dst_uses_region_group_mapping[self.engine_id] = True
        self.dst_region_mem_types[self.engine_id] = self.region_mem_types
        self.src_xfer_handles_by_block_size[self.block_size], self.src_blocks_data = (
            self.register_local_xfer_handler(self.block_size)
        )
        self.xfer_handshake_metadata = NixlHandshakePayload(
            compatibility_hash=self.compat_hash,
            agent_metadata_bytes=msgspec.msgpack.encode(self._described(addresses)),
        )

    def _is_state(self, layer: str) -> bool:
        return is_state(self._layer_specs[layer])

    def _described(self, addresses: list[int]) -> NixlAgentMetadata:
        return NixlAgentMetadata(
            engine_id=self.engine_id,
            agent_metadata=self.nixl_wrapper.get_agent_metadata(),
            device_id=self.device_id,
            kv_caches_base_addr=addresses,
            num_blocks=self.num_blocks,
            block_lens=self.block_len_per_layer,
            block_strides=self.block_stride_per_layer,
            kv_cache_layout=self.kv_cache_layout,
            block_size=self.block_size,
            ssm_sizes=self._mamba_ssm_size,
            ple_block_len=None,
            attn_backend_name=self.backend_name,
            physical_blocks_per_logical_kv_block=1,
            region_num_blocks=self.region_num_blocks,
            region_group_ids=self.region_group_ids,
            region_names=self.region_names,
            region_mem_types=self.region_mem_types,
            dcp_size=self.dcp_size,
            pcp_size=self.pcp_size,
        )

    def _build_fa_local(self, base_addresses: list[int], block_size_ratio: int) -> np.ndarray:
        return super()._build_fa_local(base_addresses[: self._num_attention], block_size_ratio)

    def _build_fa_remote(
        self, plan: "TPMapping", nixl_agent_meta: NixlAgentMetadata, block_size_ratio: int
    ) -> np.ndarray:
        addresses = nixl_agent_meta.kv_caches_base_addr[: self._num_attention]
        attention = replace(nixl_agent_meta, kv_caches_base_addr=addresses)
        return super()._build_fa_remote(plan, attention, block_size_ratio)

    def _fa_desc_replicated(
        self,
        desc_starts: np.ndarray,
        num_fa_descs: int,  # noqa: ARG002 - vLLM's signature
        block_size_ratio: int = 1,  # noqa: ARG002
    ) -> np.ndarray:
        # One strided descriptor is one layer.
        assert len(desc_starts) == self._num_attention
        return np.array(self._region_is_mla[: self._num_attention], dtype=bool)

    @cached_property
    def _num_parts(self) -> int:
        """Parts of a state that are read one by one: of the convolution, and the rest."""
        return 0 if self._conv_decomp is None else len(self._conv_decomp.local_conv_offsets) + 1

    def _compute_desc_ids(
        self, block_ids: Any, *_: Any, region_num_blocks: list[int] | None = None, **__: Any
    ) -> np.ndarray:
        """Return the descriptors of blocks; ``region_num_blocks`` are those of their engine."""
        assert region_num_blocks is not None
        parts = [1] * self._num_attention + [self._num_parts] * len(self._ssm_region_indices)
        regions = [
            (group, count)
            for group, count, many in zip(
                self.region_group_ids, region_num_blocks, parts, strict=True
            )
            for _ in range(many)
        ]
        firsts = accumulate((count for _, count in regions), initial=0)
        return np.concatenate(
            [
                np.asarray(block_ids[group], dtype=np.int32) + first
                for (group, _), first in zip(regions, firsts, strict=False)
            ]
        )

    def add_remote_agent(
        self,
        nixl_agent_meta: NixlAgentMetadata,
        remote_tp_rank: int = 0,
        remote_tp_size: int = 1,
        remote_dcp_size: int = 1,
    ) -> str:
        """Get to know a rank of another engine.

        Raises:
            HybridBlocksError: its blocks cannot be read.
        """
        # vLLM notes what an engine says before it compares it, and keeps that where it differs.
        why = self._unlike(nixl_agent_meta, remote_tp_size) or self._impossible(nixl_agent_meta)
        if why:
            raise HybridBlocksError(why)
        return super().add_remote_agent(
            nixl_agent_meta, remote_tp_rank, remote_tp_size, remote_dcp_size
        )

    def _unlike(self, other: NixlAgentMetadata, other_size: int) -> str | None:
        """Return why blocks of an engine of that many ranks cannot be read, None if they can."""
        assert self.transfer_topo is not None
        heads, size = self.transfer_topo.total_num_kv_heads, self.world_size
        sizes = f"--tensor-parallel-size {size} here and {other_size} there"
        groups = other.region_group_ids, other.region_names
        # States have as many bytes on all ranks together, unless ranks repeat a part of them.
        ours = [part * size for part in self._mamba_ssm_size]
        has_other_states = ours != [part * other_size for part in other.ssm_sizes]
        reasons = {
            f"blocks of {self.block_size} tokens here and of {other.block_size} there; set the "
            "same --block-size on both engines": self.block_size != other.block_size,
            f"other groups of layers with {sizes}; set the same size on both engines, or sizes "
            "for which `hybrid-blocks plan --all` shows the same groups": groups
            != (self.region_group_ids, self.region_names),
            f"ranks that repeat the {heads} heads of attention, and {sizes}; set the same size on "
            "both engines": not self._has_mamba and other_size > max(size, heads),
            f"latent attention next to states, and {sizes}; set the same size on both "
            "engines": self._has_mamba and self.use_mla and size != other_size,
            f"ranks that repeat a part of each state, and {sizes}; set the same size on both "
            "engines": has_other_states and size != other_size,
            f"states of {sum(self._mamba_ssm_size)} bytes here and of {sum(other.ssm_sizes)} "
            "there; set the same number of drafts on both engines, or none": has_other_states,
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    def _impossible(self, other: NixlAgentMetadata) -> str | None:
        """Return why an engine's regions cannot be as it says, None if they can."""
        counts = other.region_num_blocks or []
        regions = (
            *(counts, other.block_lens, other.block_strides, other.kv_caches_base_addr),
            other.region_mem_types or [],
        )
        if any(len(of_region) != self.num_regions for of_region in regions):
            return f"{', '.join(str(len(it)) for it in regions)} regions, not {self.num_regions}"
        ranges = zip(*regions[:4], strict=True)
        for number, (count, size, stride, address) in enumerate(ranges):
            end = address + stride * (count - 1) + size
            if not (count > 0 and 0 < size <= stride and address >= 0 and end <= 1 << 64):
                blocks = f"{count} blocks of {size} bytes, {stride} bytes apart"
                return f"region {number} of {blocks}, at address {address}"
        if sum(counts) >= 1 << 31:
            return f"regions of {sum(counts)} blocks together; descriptors have 31 bits"
        if counts != self.dst_region_num_blocks.get(other.engine_id, counts):
            return "regions that have other numbers of blocks than those of its other ranks"
        return None

    def _check_read(self, meta: "ReqMeta") -> None:
        remote = meta.remote
        assert remote is not None
        if not any(meta.local_block_ids):
            return  # The other engine only learns that its blocks are no longer needed.
        specs = [group.kv_cache_spec for group in self.kv_cache_config.transfer_groups]
        has_agent = remote.engine_id in self._remote_agents
        sizes = self.dst_region_num_blocks[remote.engine_id] if has_agent else []
        sizes_of_groups = dict(zip(self.region_group_ids, sizes, strict=False))
        groups = zip(meta.local_block_ids, remote.block_ids, specs, strict=True)
        for group, (own, theirs, spec) in enumerate(groups):
            found = meta.local_num_computed_blocks[self.kv_cache_config.transfer_group_ids[group]]
            # A window's blocks are the last ones of a prompt, any number up to the window's.
            is_window = window_of(spec) is not None
            least = len(own) + (0 if is_window or is_state(spec) else found)
            if len(theirs) < least or (len(theirs) > least and not is_window):
                raise HybridBlocksError(
                    f"{len(theirs)} blocks of group {group}, and the prompt has {least}"
                )
            read = theirs[len(theirs) - len(own) :]
            if 0 in read:
                raise HybridBlocksError(f"block 0 of group {group}, which holds nothing")
            size = sizes_of_groups.get(group)
            if size is not None and read and max(read) >= size:
                raise HybridBlocksError(
                    f"block {max(read)} of group {group}, whose layers have {size} blocks there"
                )
        if has_agent:
            self._check_lease(remote)

    def _apply_prefix_caching(
        self,
        decode_block_ids: Any,
        prefill_block_ids: Any,
        decode_physical_per_logical: int,  # noqa: ARG002 - vLLM's signature
        prefill_physical_per_logical: int,  # noqa: ARG002
    ) -> tuple[Any, Any]:
        # Both sides end with the prompt, and the reader lacks only the last ones.
        pairs = zip(decode_block_ids, prefill_block_ids, strict=True)
        return decode_block_ids, [theirs[len(theirs) - len(own) :] for own, theirs in pairs]

    def start_load_kv(self, metadata: "NixlConnectorMetadata") -> None:
        """Begin to read, after the device has cleared and copied the blocks of earlier steps."""
        begins = metadata.reqs_to_recv or not self._ready_requests.empty()
        if begins and self.device_type != "cpu":
            torch.accelerator.current_stream().synchronize()
        super().start_load_kv(metadata)

    def _check_lease(self, remote: "RemoteMeta") -> None:
        """Refuse blocks that the other engine may have given to other requests by now."""
        if remote.blocks_expiry_time is None:
            return
        end = remote.blocks_expiry_time - self._engine_clock_offset[remote.engine_id]
        key = remote.engine_id, remote.request_id
        first, renewed_end = self._renewals.get(key, (math.inf, -math.inf))
        if first < end:
            end = max(end, renewed_end)
        # The next heartbeat must come before the end, as the read needs the blocks meanwhile.
        left = end - time.perf_counter()
        if left < self._lease_extension / _HEARTBEATS_PER_EXTENSION:
            raise HybridBlocksError(
                f"the lease of its blocks ends in {left:.1f} s; raise kv_lease_duration on both "
                "engines"
            )

    def _send_heartbeats(self, metadata: "NixlConnectorMetadata") -> None:
        with self._handshake_lock:
            reached = set(self._remote_agents)
        super()._send_heartbeats(metadata)
        if not metadata.heartbeat_by_engine:
            return
        now = time.perf_counter()
        renewed_end = now + self._lease_extension
        renewals: dict[tuple[str, str], tuple[float, float]] = {}
        for engine, heartbeat in metadata.heartbeat_by_engine.items():
            for request in heartbeat.req_ids:
                key = engine, request
                first, end = self._renewals.get(key, (now, renewed_end))
                if engine in reached:
                    # Heartbeats after the end of a lease renew nothing.
                    renewals[key] = (first, renewed_end) if now < end else (now, renewed_end)
                elif key in self._renewals:
                    renewals[key] = first, end
        self._renewals = renewals

    # Reads that do not end

    def _follow_reads(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._began: dict[str, float] = {}
        self._stalled: dict[str, list[int]] = {}
        self._stalled_engines: dict[str, str] = {}
        self._forgotten: dict[str, tuple[float, list[int]]] = {}
        self._reads = StalledReads()

    def get_transfer_results(self) -> "KVConnectorTransferResults":
        """Return what has ended. A read that takes too long has failed, and is followed on."""
        self._give_up_late_reads()
        ended, _ = self._pop_done_transfers(self._stalled)
        ended |= self._ended_of_forgotten_engines()
        for request in ended:
            del self._stalled_engines[request]
        self._reads = self._reads.aggregate(StalledReads(ended=tuple(sorted(ended))))
        return super().get_transfer_results()

    def take_stalled(self) -> StalledReads | None:
        """Return what has become of reads that take too long, since the call before."""
        reads, self._reads = self._reads, StalledReads()
        return reads if reads.given_up or reads.ended else None

    def _give_up_late_reads(self) -> None:
        now = time.monotonic()
        self._began = {it: self._began.get(it, now) for it in self._recving_transfers}
        late = [
            request
            for request, began in self._began.items()
            if now - began >= self._timeout_s and self._recving_transfers[request]
        ]
        for request in late:
            remote = self._recving_metadata[request].remote
            assert remote is not None
            self._stalled[request] = self._recving_transfers.pop(request)
            self._stalled_engines[request] = remote.engine_id
            self._recv_failures.add(request)
            self.xfer_stats.record_failed_transfer()  # type: ignore[no-untyped-call]
        if late:
            engines = sorted({self._stalled_engines[request] for request in late})
            logger.warning(
                "%d reads have not ended after %g s (engine %s); their requests go on without "
                "them, and the blocks stay kept from others until the reads end",
                *(len(late), self._timeout_s, ", ".join(engines)),
            )
            self._reads = self._reads.aggregate(StalledReads(given_up=tuple(late)))

    def _ended_of_forgotten_engines(self) -> set[str]:
        now = time.monotonic()
        ended = {request for request, (until, _) in self._forgotten.items() if now >= until}
        for request in ended:
            for handle in self._forgotten.pop(request)[1]:
                self._try_release_xfer_handle(request, handle)
        return ended

    def _engines_with_inflight_transfers(self) -> set[str]:
        stalled = {self._stalled_engines[request] for request in self._stalled}
        return super()._engines_with_inflight_transfers() | stalled

    def _cleanup_remote_engine(self, engine_id: str, *, log_eviction: bool = True) -> None:
        # NIXL does not say any more when these reads end. The connection closes, and what is on its
        # way arrives before another time-out: their blocks stay kept for that long.
        until = time.monotonic() + self._timeout_s
        for request, engine in self._stalled_engines.items():
            if engine == engine_id and request in self._stalled:
                self._forgotten[request] = until, self._stalled.pop(request)
        super()._cleanup_remote_engine(engine_id, log_eviction=log_eviction)
