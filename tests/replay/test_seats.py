"""Seats that take turns in a memory that holds too few of them: what is evicted still teaches."""

import pytest
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, model_cache, replay
from hybrid_blocks.tools.trace import generate_workload

GIB = 2**30


@pytest.mark.parametrize(
    ("model", "gib", "least"), [("Nemotron-H-8B", 4, 0.5), ("Granite-4.0-H-Small", 3, 0.25)]
)
def test_states_are_kept_where_prompts_come_back_though_nothing_was_found_at_first(
    model: str, gib: int, least: float
) -> None:
    result, _ = replay(
        generate_workload("seats", num_requests=300, num_seats=16),
        manager_name=ManagerName.RUST,
        cache=model_cache(model, gib * GIB, Deployment(in_flight_batches=1)),
        config=EngineConfig(max_num_seqs=16, watermark=0.0),
    )
    assert result.hit_rate > least


@pytest.mark.parametrize("running", [2, 8])
def test_ends_are_kept_where_only_the_ends_of_prompts_were_evicted(running: int) -> None:
    """Of the tokens, vLLM's manager finds 64.5 % with 2 requests at a time."""
    result, _ = replay(
        generate_workload("seats", num_requests=600, num_seats=16),
        manager_name=ManagerName.RUST,
        cache=model_cache("Qwen3.5-27B", int(9.99 * GIB), Deployment(in_flight_batches=1)),
        config=EngineConfig(max_num_seqs=running, watermark=0.0),
    )
    assert result.hit_rate > 0.68
