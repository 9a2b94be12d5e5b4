"""A process resumes from the chunks that a killed one left."""

from pathlib import Path
from typing import Any

import conversations
import models
import pytest
from conversations import NUM_TURNS, Options, offload
from object_server import BUCKET, object_server, objects_of
from rounds import Result

KIND = "qwen3_next"
# Engines start one after another, and other tests may keep the machine busy.
pytestmark = pytest.mark.timeout(3600)
LAST: dict[str, Any] = {"first_turn": NUM_TURNS - 1}


def talk(connector: Options, model: Path | None = None, **options: Any) -> Result:
    """Hold one conversation on a device that has room for it, or its last turn alone."""
    model = model or models.build(KIND)
    return conversations.talk(model, num_chats=1, num_blocks=60, connector=connector, **options)


def check(first: Result, again: Result) -> None:
    """The last turn is the same, with as many hits, and they came from below the device."""
    assert again.tokens == first.tokens[-1:]
    assert first.cached[-1] > 0
    assert sum(again.cached) >= 0.99 * first.cached[-1]
    assert again.metrics["vllm:external_prefix_cache_hits"] == again.cached[-1]


@pytest.mark.parametrize("level", ["off", "natural"])
@pytest.mark.parametrize(
    "store", [{}, pytest.param({"store": "lazy"}, marks=pytest.mark.full)], ids=["at once", "lazy"]
)
def test_a_killed_process_leaves_all_hits(level: str, store: Options, tmp_path: Path) -> None:
    connector = offload(host="64MiB", disk=f"{tmp_path}:1GiB", **store)
    first = talk(connector, kill_once_quiet=tmp_path, level=level)
    assert ("level natural" in first.log) is (level == "natural")
    check(first, talk(connector, level=level, **LAST))


@pytest.mark.full
@pytest.mark.parametrize(("stored_by", "read_by"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("level", ["off", "natural"])
def test_another_tensor_parallel_size_reads_what_one_stored(
    level: str, stored_by: int, read_by: int, tmp_path: Path
) -> None:
    heads: Options = {
        "num_key_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }
    model = models.build(KIND, name=f"{KIND}-two-ranks", **heads)

    def talk_on(num_ranks: int, **more: Any) -> Result:
        ranks = {"tensor_parallel_size": num_ranks}
        connector = offload(host="64MiB", disk=f"{tmp_path}:1GiB")
        return talk(connector, model, level=level, options=ranks, **more)

    first = talk_on(stored_by, kill_once_quiet=tmp_path)
    assert ("level natural" in first.log) is (level == "natural")
    check(first, talk_on(read_by, **LAST))


@pytest.mark.full
def test_objects_of_a_killed_process_give_all_hits_to_another(tmp_path: Path) -> None:
    connector = offload(host="64MiB", objects=f"file://{tmp_path}")
    check(talk(connector, kill_once_quiet=tmp_path), talk(connector, **LAST))


@pytest.mark.full
def test_a_bucket_gives_all_hits_to_another_process() -> None:
    with object_server() as variables:
        connector = offload(host="64MiB", objects=f"s3://{BUCKET}/kv")
        first = talk(connector, variables=variables)
        assert objects_of(variables)
        check(first, talk(connector, variables=variables, **LAST))
