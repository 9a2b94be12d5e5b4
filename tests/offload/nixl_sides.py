"""Workers of NIXL over slabs in memory of this process, and what stands for NIXL between them."""

import ctypes
from collections import defaultdict
from queue import Queue
from threading import RLock
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hybrid_blocks.offload.nixl import worker as module
from hybrid_blocks.offload.nixl.worker import SlabNixlWorker
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlAgentMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.ssm_conv_transfer_utils import MambaConvSplitInfo
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, KVCacheTensor, MambaSpec

CUT, SLAB_BYTES = 4, 512


def attention(heads: int) -> FullAttentionSpec:
    """Two layers of 32 bytes a block and head."""
    return FullAttentionSpec(block_size=16, num_kv_heads=heads, head_size=1, dtype=torch.int8)


def state(heads: int) -> MambaSpec:
    """Two groups of one layer of 256 bytes a state and head."""
    shapes = (100 * heads,), (156 * heads,)
    dtypes = torch.int8, torch.int8
    return MambaSpec(block_size=64, shapes=shapes, dtypes=dtypes, mamba_cache_mode="align")


_SETS = (
    *("_recv_failures", "_replicated_pcp_done_sending", "_failed_remote_engines"),
    *("_invalid_remote_engines", "_reqs_to_process"),
)


class Agent:
    """Stands for a NIXL agent; memory of the other side is that of this process."""

    def __init__(self) -> None:
        self.lists: list[list[tuple[int, int]]] = []
        self.posted: list[tuple[Any, ...]] = []
        self.notified: list[bytes] = []

    def get_reg_descs(self, ranges: Any, memory: str) -> Any:
        return ranges, memory

    def register_memory(self, descs: Any, backends: Any) -> None:
        pass

    def get_agent_metadata(self) -> bytes:
        return b""

    def add_remote_agent(self, metadata: bytes) -> str:
        return metadata.decode()

    def prep_xfer_dlist(self, _agent: str, descs: np.ndarray, mem_type: str) -> int:
        assert mem_type == "DRAM"
        self.lists.append(
            [
                (int(first + number * stride), int(size))
                for first, size, _, stride, count in descs.astype(np.int64)
                for number in range(count)
            ]
        )
        return len(self.lists) - 1

    def make_prepped_xfer(
        self, _kind: str, into: int, ids: Any, source: int, source_ids: Any, notif_msg: bytes
    ) -> int:
        self.posted.append((into, ids, source, source_ids))
        self.notified.append(notif_msg)
        return len(self.posted) - 1

    def transfer(self, handle: int) -> None:
        self.read(*self.posted[handle])

    def check_xfer_state(self, _handle: int) -> str:
        return "DONE"

    def get_xfer_telemetry(self, _handle: int) -> None:
        return None

    def release_xfer_handle(self, _handle: int) -> None:
        pass

    def release_dlist_handle(self, _handle: int) -> None:
        pass

    def remove_remote_agent(self, _name: str) -> None:
        pass

    def send_notif(self, _agent: str, notif_msg: bytes) -> None:
        self.notified.append(notif_msg)

    def read(self, into: int, ids: np.ndarray, source: int, source_ids: np.ndarray) -> None:
        for target, origin in zip(ids, source_ids, strict=True):
            (first, size), (other, other_size) = (
                self.lists[into][target],
                self.lists[source][origin],
            )
            assert size == other_size
            ctypes.memmove(first, other, size)


class Slabs:
    """Random bytes cut into slabs, the configuration of what lies in them, and its views.

    Attention of two layers stands next to two states, with a number of heads each.
    """

    def __init__(self, num_slabs: int, heads: int = 1) -> None:
        self.slab = SLAB_BYTES * heads
        size, page, full = num_slabs * self.slab, 32 * heads, 256 * heads
        self.backing = torch.randint(-128, 127, (size,), dtype=torch.int8)
        self.config = NaturalKVCacheConfig(
            num_slabs,
            [
                KVCacheTensor(size, ["l.0", "l.10"], layer_stride=page, block_stride=4 * page),
                KVCacheTensor(size, ["l.2"], layer_stride=full, block_stride=self.slab),
                KVCacheTensor(size, ["l.1"], layer_stride=full, block_stride=self.slab),
            ],
            [
                KVCacheGroupSpec(["l.2"], state(heads)),
                KVCacheGroupSpec(["l.0", "l.10"], attention(heads)),
                KVCacheGroupSpec(["l.1"], state(heads)),
            ],
            pools=(1, 0, 1),
            blocks_per_slab=(CUT, 1),
        )
        self.views: dict[str, Any] = {
            "l.0": self.rows(0, CUT, page),
            "l.10": self.rows(page, CUT, page),
            **{
                layer: [self.rows(0, 1, 100 * heads), self.rows(100 * heads, 1, 156 * heads)]
                for layer in ("l.1", "l.2")
            },
        }

    def rows(self, first: int, cut: int, size: int) -> torch.Tensor:
        num_ids = len(self.backing) // self.slab * cut
        return self.backing.as_strided((num_ids, size), (self.slab // cut, 1), first)


class Side(Slabs):
    """A worker over slabs: a rank of ``tp_size``, with a number of heads."""

    def __init__(
        self,
        name: str,
        num_slabs: int,
        monkeypatch: pytest.MonkeyPatch,
        *,
        heads: int = 1,
        rank: int = 0,
        tp_size: int = 1,
    ) -> None:
        monkeypatch.setattr(module, "compute_nixl_compatibility_hash", lambda *_, **__: "hash")
        super().__init__(num_slabs, heads)
        self.rank, self.tp_size = rank, tp_size
        part = 40 * heads, 20 * heads, 40 * heads
        convolution = MambaConvSplitInfo(1, part, 1, (100 * heads, 156 * heads))
        made: Any = SlabNixlWorker.__new__(SlabNixlWorker)
        self.worker = made
        specs = [group.kv_cache_spec for group in self.config.kv_cache_groups]
        cached = SimpleNamespace(enable_prefix_caching=True)
        attributes: dict[str, Any] = {
            **dict.fromkeys(("tp_rank", "transfer_tp_rank"), rank),
            **dict.fromkeys(("dcp_rank", "device_id"), 0),
            **dict.fromkeys(("transfer_tp_size", "world_size"), tp_size),
            **dict.fromkeys(("dcp_size", "pcp_size", "pp_size"), 1),
            "attn_backends": [],
            "_registered_descs": [],
            "_transfer_layer_names": (),
            **dict.fromkeys(
                (
                    *("dst_num_blocks", "dst_region_num_blocks", "dst_region_group_ids"),
                    *("dst_uses_region_group_mapping", "dst_region_mem_types"),
                    *("src_xfer_handles_by_block_size", "tp_mappings", "_remote_agents"),
                    *("dst_xfer_side_handles", "src_xfer_handles_by_tp_ratio"),
                )
            ),
            "use_mla": False,
            "_has_mamba": True,
            "_is_csa_linear": False,
            "_is_hma_required": True,
            "_supports_pp_hma": False,
            "use_host_buffer": False,
            "_mixed_mem_types": False,
            "_packed_member_layouts": {},
            "_head_sharded_draft_regions": set(),
            "_transfer_layer_region_indices": (),
            "_physical_blocks_per_logical_kv_block": 1,
            "_ple_region_index": None,
            "block_size": 16,
            "backend_name": "CPU_ATTN",
            "kv_cache_layout": "LBHNC",
            "nixl_memory_type": "DRAM",
            "nixl_backends": ["UCX"],
            "engine_id": name,
            "num_blocks": num_slabs,
            "_logical_num_blocks": num_slabs,
            "kv_cache_config": self.config,
            "_conv_decomp": convolution,
            "_mamba_ssm_size": convolution.ssm_sizes,
            "_group_spec_types": tuple(type(spec) for spec in specs),
            "_layer_specs": {
                layer: group.kv_cache_spec
                for group in self.config.kv_cache_groups
                for layer in group.layer_names
            },
            "model_config": SimpleNamespace(get_total_num_kv_heads=lambda: heads * tp_size),
            "vllm_config": SimpleNamespace(cache_config=cached),
            "kv_transfer_config": SimpleNamespace(enable_permute_local_kv=False),
            **dict.fromkeys(
                (
                    *("_recving_metadata", "_pending_recv_notifs", "_reqs_to_send"),
                    *("_engine_by_address", "draft_tp_mappings", "_engine_clock_offset"),
                    *("_engine_last_active", "_remote_registration_generations", "_renewals"),
                    *("_invalid_engine_backoff", "_handshake_futures"),
                )
            ),
            **{name: set() for name in _SETS},
            "_recving_transfers": defaultdict(list),
            "_failed_recv_reqs": Queue(),
            "_ready_requests": Queue(),
            "_handshake_lock": RLock(),
            "_get_new_notifs": set,
            "device_type": "cpu",
            "pcp_rank": 0,
            "pcp_dcp_sharded": False,
            "_bidirectional_kv_xfer_enabled": False,
            "_lease_extension": 20,
            "_engine_ttl": 0,
            "_hb_handshake_notif_only": False,
            "enable_permute_local_kv": False,
            "enable_heterogeneous_attn_post_process": False,
            "xfer_stats": SimpleNamespace(
                record_failed_transfer=lambda: None, record_transfer=lambda _: None
            ),
        }
        for attribute, value in attributes.items():
            own = {} if value is None and attribute != "_ple_region_index" else value
            setattr(made, attribute, list(own) if isinstance(own, list) else own)
        made._follow_reads(60.0)
        made.kv_caches_base_addr = {name: {}}
        made.nixl_wrapper = Agent()
        made.register_kv_caches(self.views)

    def told(self) -> NixlAgentMetadata:
        payload = self.worker.xfer_handshake_metadata.agent_metadata_bytes
        return msgspec.msgpack.decode(payload, type=NixlAgentMetadata)


def meet(reader: Side, *ranks: Side) -> None:
    """Shake hands with the ranks of another engine that the reader reads."""
    worker = reader.worker
    name = ranks[0].worker.engine_id
    worker.kv_caches_base_addr[name] = {}
    worker.dst_xfer_side_handles[name] = {}
    agents = {(0, it.rank): worker.add_remote_agent(it.told(), it.rank, it.tp_size) for it in ranks}
    worker._remote_agents[name] = agents
    worker._engine_by_address[("localhost", 1)] = name
    worker._engine_clock_offset[name] = 0.0
