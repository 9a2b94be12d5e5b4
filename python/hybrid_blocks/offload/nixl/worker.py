"""The worker side of pulls by NIXL: blocks in slabs are read by the ids of each group."""

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
from vllm.v1.kv_cache_interface import MambaSpec, MLAAttentionSpec

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.slabs.rows import rows_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import TPMapping

_IN_SLABS = "pull of blocks in slabs, 1"
"""How engines at level ``natural`` transfer; a part of what both sides compare."""


class HybridNixlWorker(NixlPullConnectorWorker):
    """vLLM's worker, which says why an engine at level ``natural`` and another do not pair."""

    is_in_slabs = False

    def _hash(self, *, is_in_slabs: bool) -> str:
        mode = _IN_SLABS if is_in_slabs else self._TRANSFER_MODE
        return str(
            compute_nixl_compatibility_hash(self.vllm_config, self.backend_name, transfer_mode=mode)
        )

    def _nixl_handshake(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._nixl_handshake(*args, **kwargs)
        except RuntimeError as error:
            # Of an engine that differs in this alone the hash is known.
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

    # Regions

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
        return isinstance(self._layer_specs[layer], MambaSpec)

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

    # Reads

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

    def _validate_remote_agent_handshake(
        self, nixl_agent_meta: NixlAgentMetadata, remote_tp_size: int, remote_dcp_size: int = 1
    ) -> None:
        ours = self.block_size, self.region_group_ids, self.region_names
        theirs = (
            nixl_agent_meta.block_size,
            nixl_agent_meta.region_group_ids,
            nixl_agent_meta.region_names,
        )
        if ours != theirs or remote_tp_size != self.world_size:
            raise HybridBlocksError(
                f"blocks of {ours[0]} tokens here and of {theirs[0]} there, or other groups of "
                "layers; set the same --block-size and --tensor-parallel-size on both"
            )
        super()._validate_remote_agent_handshake(nixl_agent_meta, remote_tp_size, remote_dcp_size)

    def start_load_kv(self, metadata: "NixlConnectorMetadata") -> None:
        """Begin to read, after the device has cleared and copied the blocks of earlier steps."""
        begins = metadata.reqs_to_recv or not self._ready_requests.empty()
        if begins and self.device_type != "cpu":
            torch.accelerator.current_stream().synchronize()
        super().start_load_kv(metadata)
