"""Events of level ``natural`` in the form that llm-d's adapter for vLLM reads (Go, msgpack).

Fields, order and types are those of ``pkg/kvevents/engineadapter/vllm_adapter.go`` in llm-d-router,
and the rules of its index those of ``pkg/kvevents/pool.go``.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from published import ATTENTION, Load, Published, natural, published
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

BLOCK_SIZE = 16
"""llm-d's ``blockSizeTokens``. Its ``hashSeed`` is for keys of its own."""

FIELDS: dict[type, tuple[str, ...]] = {
    BlockStored: (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size"),
        *("lora_id", "medium", "lora_name", "extra_keys", "group_idx"),
        *("kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    ),
    BlockRemoved: ("block_hashes", "medium", "group_idx"),
    AllBlocksCleared: (),
}
"""In the order of vLLM's positional events, which llm-d puts maps into."""


@pytest.mark.parametrize("kind", FIELDS)
def test_fields_stand_in_the_order_of_positional_events(kind: type) -> None:
    names = tuple(field.name for field in msgspec.structs.fields(kind))
    assert names[: len(FIELDS[kind])] == FIELDS[kind]


@pytest.fixture(scope="module", params=["Qwen3.5-27B", "gpt-oss-20b"])
def life(request: pytest.FixtureRequest) -> Published:
    load = Load(request.param, 5 if request.param[0] == "Q" else 0.7, "conversations", 30)
    with pytest.MonkeyPatch.context() as patched, natural(patched, "usable"):
        return published(load)


def events_of(life: Published) -> Iterator[dict[str, Any]]:
    for batch in life.batches:
        time, events, rank = msgspec.msgpack.decode(batch)
        assert isinstance(time, float)
        assert rank == 0
        yield from events


def check_hash(value: Any) -> None:
    """Go decodes a smaller number to another type, and its adapter refuses that one."""
    assert type(value) is int
    assert 2**32 <= value < 2**64


def test_each_event_has_the_types_that_the_adapter_reads(life: Published) -> None:
    seen = set()
    for event in events_of(life):
        seen.add(event["type"])
        for value in event.get("block_hashes", ()):
            check_hash(value)
        assert event.get("medium") in (None, "GPU")
        if event["type"] != "AllBlocksCleared":
            assert event["block_hashes"]
            assert event["group_idx"] >= 0
        if event["type"] == "BlockStored":
            if event["parent_block_hash"] is not None:
                check_hash(event["parent_block_hash"])
            assert all(type(one) is int and 0 <= one < 2**32 for one in event["token_ids"])
            assert type(event["block_size"]) is int
            assert event["lora_id"] is None
            assert event["lora_name"] is None
            keys = event.get("extra_keys")
            assert keys is None or all(one is None or isinstance(one, list) for one in keys)
            assert event["kv_cache_spec_kind"] in (*ATTENTION, "mamba", "sliding_window")
            window = event.get("kv_cache_spec_sliding_window")
            assert (window is None) == (event["kv_cache_spec_kind"] != "sliding_window")
    assert seen == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}


def test_each_event_of_attention_enters_an_index_that_counts_references(life: Published) -> None:
    """A block is dropped when each event that stored it has its removal."""
    references, kinds = Counter[int](), dict[int, str]()
    for event in events_of(life):
        if event["type"] == "AllBlocksCleared":
            references.clear()
        elif event["type"] == "BlockStored":
            kinds[event["group_idx"]] = event["kv_cache_spec_kind"]
            if event["kv_cache_spec_kind"] in ATTENTION:
                hashes, parent = event["block_hashes"], event["parent_block_hash"]
                assert event["block_size"] == BLOCK_SIZE
                assert len(event["token_ids"]) == BLOCK_SIZE * len(hashes)
                assert parent is None or references[parent]
                assert not any(references[one] for one in hashes)
                references.update(hashes)
        elif kinds[event["group_idx"]] in ATTENTION:
            assert all(references[one] == 1 for one in event["block_hashes"])
            references.subtract(event["block_hashes"])
    assert life.block_size == BLOCK_SIZE
    assert sum(references.values()) == 0
