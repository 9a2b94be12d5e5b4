"""The router of the examples counts what events name."""

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

NAMES = runpy.run_path(str(Path(__file__).parents[1] / "examples/router.py"))
Router: Any = NAMES["Router"]
TOKENS = list(range(12))
GROUP = 1


def stored(
    hashes: list[str], parent: str | None, tokens: list[int], kind: str = "full_attention"
) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": 4,
        "group_idx": GROUP if kind == "full_attention" else 0,
        "kv_cache_spec_kind": kind,
    }


def removed(hashes: list[str], group: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "group_idx": group}


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([0.5, list(events)])


@pytest.fixture
def router() -> Any:
    made = Router(["a", "b"])
    attention = stored(["x", "y"], None, TOKENS[:8])
    made.replicas["b"].read(batch(attention, stored(["s"], None, TOKENS[:4], "mamba")))
    return made


def test_a_prompt_goes_where_most_of_it_is(router: Any) -> None:
    assert [router.choose(TOKENS) for _ in range(3)] == ["b", "b", "b"]
    assert router.replicas["b"].count(TOKENS) == 2
    assert router.replicas["a"].count(TOKENS) == 0


def test_equal_replicas_take_turns(router: Any) -> None:
    unknown = [99] * 12
    assert {router.choose(unknown), router.choose(unknown)} == {"a", "b"}


def test_only_blocks_from_the_start_without_a_gap_count(router: Any) -> None:
    replica = router.replicas["b"]
    replica.read(batch(stored(["z"], "y", TOKENS[8:])))
    assert replica.count(TOKENS) == 3
    replica.read(batch(removed(["y"], 0)))
    assert replica.count(TOKENS) == 3, "a state of that hash is gone"
    replica.read(batch(removed(["y"], GROUP)))
    assert replica.count(TOKENS) == 1
    replica.read(batch({"type": "AllBlocksCleared"}))
    assert replica.count(TOKENS) == 0


def test_blocks_behind_unknown_ones_are_left_out(router: Any) -> None:
    replica = router.replicas["a"]
    replica.read(batch(stored(["z"], "y", TOKENS[8:])))
    assert replica.count(TOKENS) == 0
