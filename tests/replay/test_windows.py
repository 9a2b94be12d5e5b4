"""Windows are kept where a hit may end: the replay finds what it finds without windows."""

import pytest
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, model_cache, replay
from hybrid_blocks.tools.trace import generate_workload

GIB = 2**30
FOUND = (5 * 4096 + 512 * 10) / (6 * 4096 + 512 * 15)
"""Prompt tokens that are found if every prompt finds its seat's last one."""


def share_found(model: str, gib: float, seats: int) -> float:
    result, _ = replay(
        generate_workload("seats", num_requests=6 * seats, num_seats=seats),
        manager_name=ManagerName.RUST,
        cache=model_cache(model, int(gib * GIB), Deployment(in_flight_batches=1)),
        config=EngineConfig(max_num_seqs=2, watermark=0.0),
    )
    return result.hit_rate


@pytest.mark.parametrize(
    ("model", "gib", "seats"), [("gpt-oss-20b", 2.0, 12), ("Gemma-4-12B", 10.0, 12)]
)
def test_seats_find_their_last_prompts_though_all_windows_do_not_fit(
    model: str, gib: float, seats: int
) -> None:
    assert share_found(model, gib, seats) == pytest.approx(FOUND, abs=0.005)


@pytest.mark.parametrize(
    ("model", "gib", "seats"), [("gpt-oss-20b", 2.0, 18), ("Gemma-4-12B", 10.0, 20)]
)
def test_seats_find_their_first_prompts_where_their_last_ones_do_not_fit(
    model: str, gib: float, seats: int
) -> None:
    assert share_found(model, gib, seats) > 0.5
