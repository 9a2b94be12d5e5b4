"""Pulls of blocks in slabs: every byte, with other numbers of slabs on both sides."""

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.offload.nixl import worker as module
from hybrid_blocks.offload.nixl.held import Held
from hybrid_blocks.offload.nixl.scheduler import SlabNixlScheduler
from hybrid_blocks.offload.nixl.worker import SlabNixlWorker
from hybrid_blocks.vllm.natural.config import NaturalKVCacheConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlAgentMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.ssm_conv_transfer_utils import MambaConvSplitInfo
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
)
from vllm.v1.request import RequestStatus

CUT, SLAB_BYTES = 4, 512
ATTENTION = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.int8)
STATE = MambaSpec(
    block_size=64,
    shapes=((100,), (156,)),
    dtypes=(torch.int8, torch.int8),
    mamba_cache_mode="align",
)
"""Two attention layers of 32 bytes a block, and two groups of one layer of 256 bytes a state."""
CONV = MambaConvSplitInfo(1, (40, 20, 40), 1, (100, 156))


class Agent:
    """Stands for a NIXL agent; memory of the other side is that of this process."""

    def __init__(self) -> None:
        self.lists: list[list[tuple[int, int]]] = []

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

    def read(self, into: int, ids: np.ndarray, source: int, source_ids: np.ndarray) -> None:
        for target, origin in zip(ids, source_ids, strict=True):
            (first, size), (other, other_size) = (
                self.lists[into][target],
                self.lists[source][origin],
            )
            assert size == other_size
            ctypes.memmove(first, other, size)


class Side:
    """A worker over a backing with random bytes."""

    def __init__(self, name: str, num_slabs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "compute_nixl_compatibility_hash", lambda *_, **__: "hash")
        size = num_slabs * SLAB_BYTES
        self.backing = torch.randint(-128, 127, (size,), dtype=torch.int8)
        self.config = NaturalKVCacheConfig(
            num_slabs,
            [
                KVCacheTensor(size=size, layers=["l.0", "l.10"], layer_stride=32, block_stride=128),
                KVCacheTensor(size=size, layers=["l.2"], layer_stride=256, block_stride=SLAB_BYTES),
                KVCacheTensor(size=size, layers=["l.1"], layer_stride=256, block_stride=SLAB_BYTES),
            ],
            [
                KVCacheGroupSpec(["l.2"], STATE),
                KVCacheGroupSpec(["l.0", "l.10"], ATTENTION),
                KVCacheGroupSpec(["l.1"], STATE),
            ],
            pools=(1, 0, 1),
            blocks_per_slab=(CUT, 1),
        )
        made: Any = SlabNixlWorker.__new__(SlabNixlWorker)
        self.worker = made
        specs = [group.kv_cache_spec for group in self.config.kv_cache_groups]
        attributes: dict[str, Any] = {
            **dict.fromkeys(("tp_rank", "transfer_tp_rank", "dcp_rank", "device_id"), 0),
            **dict.fromkeys(("transfer_tp_size", "world_size", "dcp_size"), 1),
            **dict.fromkeys(("pcp_size", "pp_size"), 1),
            "attn_backends": [],
            "_registered_descs": [],
            "_transfer_layer_names": (),
            **dict.fromkeys(
                (
                    *("dst_num_blocks", "dst_region_num_blocks", "dst_region_group_ids"),
                    *("dst_uses_region_group_mapping", "dst_region_mem_types"),
                    *("src_xfer_handles_by_block_size", "tp_mappings", "_remote_agents"),
                    *("dst_xfer_side_handles", "src_xfer_handles_by_tp_ratio"),
                ),
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
            "_conv_decomp": CONV,
            "_mamba_ssm_size": CONV.ssm_sizes,
            "_group_spec_types": tuple(type(spec) for spec in specs),
            "_layer_specs": {
                layer: group.kv_cache_spec
                for group in self.config.kv_cache_groups
                for layer in group.layer_names
            },
            "model_config": SimpleNamespace(get_total_num_kv_heads=lambda: 1),
            "vllm_config": SimpleNamespace(
                cache_config=SimpleNamespace(enable_prefix_caching=True)
            ),
            "kv_transfer_config": SimpleNamespace(enable_permute_local_kv=False),
        }
        for attribute, value in attributes.items():
            own = {} if value is None and attribute != "_ple_region_index" else value
            setattr(made, attribute, list(own) if isinstance(own, list) else own)
        made.kv_caches_base_addr = {name: {}}
        made.nixl_wrapper = Agent()
        views = {
            "l.0": self.rows(0, CUT, 32),
            "l.10": self.rows(32, CUT, 32),
            "l.2": [self.rows(0, 1, 100), self.rows(100, 1, 156)],
            "l.1": [self.rows(0, 1, 100), self.rows(100, 1, 156)],
        }
        made.register_kv_caches(views)

    def rows(self, first: int, cut: int, size: int) -> torch.Tensor:
        num_ids = len(self.backing) // SLAB_BYTES * cut
        return self.backing.as_strided((num_ids, size), (SLAB_BYTES // cut, 1), first)

    def told(self) -> NixlAgentMetadata:
        payload = self.worker.xfer_handshake_metadata.agent_metadata_bytes
        return msgspec.msgpack.decode(payload, type=NixlAgentMetadata)


def meet(reader: Side, other: Side) -> None:
    worker = reader.worker
    theirs = other.told()
    worker.kv_caches_base_addr[theirs.engine_id] = {}
    worker.dst_xfer_side_handles[theirs.engine_id] = {}
    worker.add_remote_agent(theirs)


def pull(reader: Side, other: Side, ids: Any, other_ids: Any) -> None:
    worker, name = reader.worker, other.worker.engine_id
    worker.nixl_wrapper.read(
        worker.src_xfer_handles_by_block_size[16],
        worker._compute_desc_ids(
            block_ids=ids, region_num_blocks=worker.dst_region_num_blocks[reader.worker.engine_id]
        ),
        worker.dst_xfer_side_handles[name][0],
        worker._compute_desc_ids(
            block_ids=other_ids, region_num_blocks=worker.dst_region_num_blocks[name]
        ),
    )


def test_the_blocks_of_each_group_are_read_and_no_other_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, other = Side("d", 5, monkeypatch), Side("p", 9, monkeypatch)
    meet(reader, other)
    expected = reader.backing.clone()
    rows = expected.view(5, SLAB_BYTES)
    theirs = other.backing.view(9, SLAB_BYTES)
    # Attention: blocks of slabs 1 and 3 from those of slabs 8 and 2. States: slabs 2 and 4.
    for block, origin in ((5, 33), (14, 8)):
        slab, place = divmod(block, CUT)
        source, other_place = divmod(origin, CUT)
        rows[slab, 128 * place : 128 * place + 64] = theirs[
            source, 128 * other_place : 128 * other_place + 64
        ]
    rows[2, :256], rows[4, :256] = theirs[7, :256], theirs[3, :256]
    pull(reader, other, [[2], [5, 14], [4]], [[7], [33, 8], [3]])
    assert torch.equal(reader.backing, expected)


def test_attention_alone_is_read_where_other_groups_have_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, other = Side("d", 5, monkeypatch), Side("p", 9, monkeypatch)
    meet(reader, other)
    before = reader.backing.clone()
    pull(reader, other, [[], [6], []], [[], [1], []])
    changed = (reader.backing != before).nonzero().flatten()
    assert set(changed.tolist()) <= set(range(6 * 128, 6 * 128 + 64))
    assert torch.equal(reader.backing[768:832], other.backing[128:192])


def test_engines_with_other_groups_of_layers_do_not_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, other = Side("d", 5, monkeypatch), Side("p", 9, monkeypatch)
    other.worker.region_group_ids[-1] = 2
    other.worker.xfer_handshake_metadata.agent_metadata_bytes = msgspec.msgpack.encode(
        other.worker._described([1] * 4)
    )
    with pytest.raises(HybridBlocksError, match="other groups of layers"):
        meet(reader, other)


@pytest.mark.parametrize("in_slabs", [True, False])
def test_an_engine_at_another_level_is_refused_with_the_reason(
    in_slabs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"hash mismatch. Local: a, Remote: {mode_of(not in_slabs)}")

    def mode_of(is_in_slabs: bool) -> str:
        return f"<{'slabs' if is_in_slabs else 'pull'}>"

    monkeypatch.setattr(base_worker.NixlBaseConnectorWorker, "_nixl_handshake", differs)
    monkeypatch.setattr(
        module,
        "compute_nixl_compatibility_hash",
        lambda *_, transfer_mode: mode_of("slabs" in transfer_mode),
    )
    cls = SlabNixlWorker if in_slabs else module.HybridNixlWorker
    worker: Any = cls.__new__(cls)
    worker.vllm_config = worker.backend_name = None
    with pytest.raises(HybridBlocksError, match=r"runs at level natural, .* on both"):
        worker._nixl_handshake("host", 1, 1, "engine")


class Prompts:
    """The scheduler side of an engine of nine slabs, which may hold five of them for readers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        transfer = SimpleNamespace(
            get_from_extra_config={"held_share": 0.6}.get,
            kv_buffer_device="cpu",
        )
        parallel = SimpleNamespace(
            tensor_parallel_size=1,
            decode_context_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_index=0,
        )
        config: Any = SimpleNamespace(
            parallel_config=parallel,
            cache_config=SimpleNamespace(block_size=16),
            kv_transfer_config=transfer,
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
            num_prefill_lookahead_tokens=0,
        )
        blocks = Side("p", 9, monkeypatch).config
        self.side = SlabNixlScheduler(config, "p", blocks)

    def finish(self, name: str, *ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        request: Any = SimpleNamespace(
            request_id=name,
            num_computed_tokens=33,
            num_prompt_tokens=33,
            status=RequestStatus.FINISHED_LENGTH_CAPPED,
            kv_transfer_params={"do_remote_decode": True},
        )
        return self.side.request_finished(request, ids)

    def figures(self) -> list[float]:
        return [sample.value for sample in self.side.samples()]


def test_a_reader_is_told_of_the_blocks_of_the_prompt_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block for drafts behind them would shift all of a reader that has the first ones."""
    is_held, told = Prompts(monkeypatch).finish("a", [7], [4, 5, 6, 9], [8])
    assert is_held
    assert told is not None
    assert list(told["remote_block_ids"]) == [[7], [4, 5, 6], [8]]


def test_a_prompt_without_room_is_left_to_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch)
    assert prompts.finish("a", [7], [4, 5, 6], [8])[0]
    assert prompts.finish("b", [3], [8, 9, 10], [2]) == (False, None)
    assert prompts.figures() == [3, 1]
    metadata: Any = prompts.side.build_connector_meta(cast("Any", None))
    assert list(metadata.reqs_to_send) == ["a"]
    assert metadata.reqs_not_processed == {"b"}
    read: Any = SimpleNamespace(finished_recving=None, finished_sending={"a"})
    prompts.side.update_connector_output(read)
    assert prompts.finish("c", [3], [8, 9, 10], [2])[0]
    assert prompts.figures() == [3, 1]


def test_what_waits_for_its_reader_is_bounded() -> None:
    config: Any = SimpleNamespace(num_blocks=10, blocks_per_slab_of=lambda group: (4, 1)[group])
    held = Held(config, 0.5)
    assert held.take("a", [[9, 8, 7, 6, 5], [3]])
    assert held.num_slabs == 3
    assert not held.take("b", [[1, 2, 4, 10], [1, 2]])
    assert held.take("c", [[1, 0], [2]])
    assert (held.num_slabs, held.num_refused) == (5, 1)
    held.give_back("a")
    held.give_back("b")
    assert held.num_slabs == 2
    with pytest.raises(InvalidArgumentError, match="held_share"):
        Held(config, 2)
