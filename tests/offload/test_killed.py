"""A process resumes from the chunks that a killed one left."""

from pathlib import Path
from typing import Any

import models
import pytest
from conversations import NUM_TURNS, Result, run
from object_server import BUCKET, object_server, objects_of

BUILD = Path(__file__).parents[2] / "build" / "e2e"
KIND = "qwen3_next"
# Engines start one after another, and other tests may keep the machine busy.
pytestmark = pytest.mark.timeout(3600)


def config(**options: Any) -> dict[str, Any]:
    return {
        "spec_name": "HybridOffloadingSpec",
        "spec_module_path": "hybrid_blocks.offload",
        "host": "64MiB",
        # Hits are counted, and a small model computes sooner than a busy disk reads.
        "read": "longest",
        **options,
    }


def talk(offload: dict[str, Any], model: Path | None = None, **options: Any) -> Result:
    """Hold one conversation on a device that has room for it, or its last turn alone."""
    model = model or models.build(KIND, BUILD)
    return run(model, num_chats=1, num_blocks=60, offload=offload, **options)


def check(first: Result, again: Result) -> None:
    """The last turn is the same, with as many hits, and they came from below the device."""
    assert again.answers == first.answers[-1:]
    assert first.cached[-1] > 0
    assert sum(again.cached) >= 0.99 * first.cached[-1]
    assert again.metrics["vllm:external_prefix_cache_hits"] == again.cached[-1]


LAST: dict[str, Any] = {"first_turn": NUM_TURNS - 1}


@pytest.mark.parametrize("level", ["off", "natural"])
def test_a_disk_of_a_killed_process_gives_all_hits(level: str, tmp_path: Path) -> None:
    offload = config(disk=f"{tmp_path}:1GiB")
    first = talk(offload, kill_once_quiet=tmp_path, level=level)
    assert ("level natural" in first.log) is (level == "natural")
    check(first, talk(offload, level=level, **LAST))


@pytest.mark.full
@pytest.mark.parametrize(("stored_by", "read_by"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("level", ["off", "natural"])
def test_another_tensor_parallel_size_reads_what_one_stored(
    level: str, stored_by: int, read_by: int, tmp_path: Path
) -> None:
    heads = {"num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    model = models.build(KIND, BUILD, f"{KIND}-two-ranks", **heads)

    def talk_on(num_ranks: int, **options: Any) -> Result:
        ranks = {"tensor_parallel_size": num_ranks}
        offload = config(disk=f"{tmp_path}:1GiB")
        return talk(offload, model, level=level, options=ranks, **options)

    first = talk_on(stored_by, kill_once_quiet=tmp_path)
    assert ("level natural" in first.log) is (level == "natural")
    check(first, talk_on(read_by, **LAST))


@pytest.mark.full
def test_objects_of_a_killed_process_give_all_hits_to_another(tmp_path: Path) -> None:
    offload = config(objects=f"file://{tmp_path}")
    check(talk(offload, kill_once_quiet=tmp_path), talk(offload, **LAST))


@pytest.mark.full
@pytest.mark.parametrize("level", ["off", "natural"])
def test_lazy_stores_of_a_killed_process_give_all_hits(level: str, tmp_path: Path) -> None:
    offload = config(disk=f"{tmp_path}:1GiB", store="lazy")
    first = talk(offload, kill_once_quiet=tmp_path, level=level)
    assert ("level natural" in first.log) is (level == "natural")
    check(first, talk(offload, level=level, **LAST))


@pytest.mark.full
def test_a_bucket_gives_all_hits_to_another_process() -> None:
    with object_server() as variables:
        offload = config(objects=f"s3://{BUCKET}/kv")
        first = talk(offload, variables=variables)
        assert objects_of(variables)
        check(first, talk(offload, variables=variables, **LAST))
