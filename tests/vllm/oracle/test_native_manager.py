"""The native manager in its place: when it is chosen, and what it owes those who hold it."""

from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hybrid_blocks.errors import IntegrityError
from hybrid_blocks.vllm.manager.geometry import unsupported_reason
from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager
from installed import installed
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_manager import KVCacheManager as VllmKVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import RSWASpec
from vllm.v1.request import Request

from .engines import ENGINES, Engine, full

SIZES: dict[str, Any] = {"block_size": 4, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    init_none_hash(sha256)
    with installed():
        yield


def make(engine: Engine, **changes: Any) -> Any:
    return KVCacheManager(**engine.arguments() | {"enable_kv_cache_events": False} | changes)


def request(name: str, num_tokens: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=list(range(num_tokens)),
        sampling_params=SamplingParams(max_tokens=4),
        pooling_params=None,
        block_hasher=get_request_block_hasher(4, sha256),
    )


@pytest.mark.parametrize("name", ENGINES)
def test_the_native_manager_covers_every_engine_of_the_oracle(name: str) -> None:
    manager = make(ENGINES[name])
    assert type(manager) is NativeKVCacheManager
    assert isinstance(manager, VllmKVCacheManager)


def test_a_kind_of_group_that_is_not_covered_falls_back_with_its_name() -> None:
    spec = RSWASpec(rswa_window=8, **SIZES)
    engine = replace(ENGINES["full"], groups=(full(4), spec), enable_caching=False)
    assert "RSWAManager" in str(unsupported_reason(engine.config()))
    assert type(make(engine)) is KVCacheManager


def test_context_parallelism_and_residency_metrics_are_covered_and_not_over_slabs() -> None:
    config = ENGINES["full"].config()
    for options, reason in (
        ({"dcp_world_size": 2, "pcp_world_size": 2}, "prefill context parallelism"),
        ({"metrics_collector": object()}, "KV-cache residency metrics"),
    ):
        assert unsupported_reason(config, **options) is None
        assert NaturalKVCacheManager.unsupported_reason(config, **options) == reason


def test_without_a_collector_nothing_is_noted_for_one() -> None:
    manager = make(ENGINES["full"])
    manager._note_residency = None
    manager.allocate_slots(request("a", 9), 9)


def test_results_are_ids_that_pass_for_vllms_class_and_show_the_pools_own_blocks() -> None:
    manager = make(ENGINES["full-sliding"])
    new = manager.allocate_slots(request("a", 10), 10)
    assert isinstance(new, KVCacheBlocks)
    assert new.get_block_ids() == ([1, 2, 3], [4, 5, 6])
    assert new.blocks[0][0] is manager.block_pool.blocks[1]
    assert new.blocks[0][0].ref_cnt == 1
    assert manager.get_blocks("nobody") is manager.empty_kv_cache_blocks
    with pytest.raises(IndexError):
        new.get_block_ids(group_ids=[7])


def test_tables_seen_through_vllms_managers_are_those_of_the_core() -> None:
    manager = make(ENGINES["full"])
    first = request("a", 10)
    manager.allocate_slots(first, 10)
    (group,) = manager.coordinator.single_type_managers
    assert [block.block_id for block in group.req_to_blocks["a"]] == [1, 2, 3]
    assert dict(group.num_cached_block) == {"a": 2}
    assert "b" not in group.req_to_blocks
    manager.free(first)
    assert len(group.req_to_blocks) == 0


def test_a_table_grows_with_its_request_and_is_read_after_it() -> None:
    manager = make(ENGINES["full"])
    first = request("a", 10)
    manager.allocate_slots(first, 8)
    (group,) = manager.coordinator.single_type_managers
    table = group.req_to_blocks["a"]
    assert len(table) == 2
    first.num_computed_tokens = 8
    manager.allocate_slots(first, 2)
    blocks = manager.block_pool.blocks
    assert table == [blocks[1], blocks[2], blocks[3]]
    assert table[-1] is blocks[3]
    assert [*table, blocks[4]] == table + [blocks[4]]  # noqa: RUF005 - what callers may write
    manager.free(first)
    assert [block.ref_cnt for block in table] == [0, 0, 0]


def test_a_decode_step_that_needs_nothing_answers_with_the_one_empty_result() -> None:
    manager = make(ENGINES["full"])
    first = request("a", 10)
    manager.allocate_slots(first, 10)
    first.num_computed_tokens = 10
    for _ in range(2):
        assert manager.allocate_slots(first, 1) is manager.empty_kv_cache_blocks
    first.num_computed_tokens = 12
    assert manager.allocate_slots(first, 1).get_block_ids() == ([4],)


def test_a_feigned_shortage_leaves_no_room_until_it_is_taken_back() -> None:
    vllms = VllmKVCacheManager(**ENGINES["full"].arguments() | {"enable_kv_cache_events": False})
    for manager in (vllms, make(ENGINES["full"])):
        queue = manager.block_pool.free_block_queue
        first, second = request("a", 10), request("b", 4)
        assert manager.allocate_slots(first, 10)
        before = queue.num_free_blocks
        queue.num_free_blocks = 0
        assert not manager.allocate_slots(second, 4)
        first.num_computed_tokens = 10
        assert manager.allocate_slots(first, 2), "there is room in its last block"
        manager.free(first)
        assert queue.num_free_blocks == 3
        assert manager.allocate_slots(second, 4)
        assert not manager.allocate_slots(request("c", 16), 16)
        queue.num_free_blocks = before
        assert manager.allocate_slots(request("d", 16), 16)


@pytest.mark.parametrize("how", [copy, deepcopy])
def test_a_copy_of_a_request_is_a_request_of_its_own(how: Any) -> None:
    manager = make(ENGINES["full"])
    first = request("first", 10)
    manager.allocate_slots(first, 10)
    first._block_hasher = None
    other = how(first)
    other.request_id = "other"
    manager.allocate_slots(other, 10)
    assert manager.get_block_ids("first") != manager.get_block_ids("other")
    manager.free(first)
    assert manager.get_block_ids("other") != ([],)
    assert manager.get_block_ids("first") == ([],)


def test_a_request_may_go_from_one_manager_to_another_and_back() -> None:
    managers = [make(ENGINES["full"]) for _ in range(2)]
    managers[1].allocate_slots(request("before", 10), 10)
    travels = request("travels", 10)
    for manager in [*managers, *managers]:
        manager.allocate_slots(travels, 10)
        travels.num_computed_tokens = 10
        travels.append_output_token_ids([1, 2, 3])
        manager.allocate_slots(travels, 3)
        assert len(manager.get_block_ids("travels")[0]) == 4
        manager.free(travels)
        travels = request("travels", 10)
        assert manager.get_block_ids("travels") == ([],)
    assert len(managers[1].get_block_ids("before")[0]) == 3


def test_a_panic_in_the_core_becomes_an_exception_that_names_the_request() -> None:
    manager = make(ENGINES["full"])
    manager.allocate_slots(request("fine", 10), 10)
    # vLLM's hits have a list for every group; the core takes that for granted.
    impossible = KVCacheBlocks(())
    with pytest.raises(IntegrityError, match='panicked at request "doomed": index out of bounds'):
        manager.allocate_slots(request("doomed", 10), 6, 4, impossible)
    with pytest.raises(IntegrityError, match="an earlier call panicked"):
        manager.allocate_slots(request("after", 10), 10)


def test_no_new_and_no_computed_tokens_are_refused_as_vllm_refuses_them() -> None:
    with pytest.raises(ValueError, match="num_new_tokens must be greater than 0"):
        make(ENGINES["full"]).allocate_slots(request("a", 10), 0)
