"""Where requests fill the memory, an admission leaves room for their checkpoints, as in vLLM."""

from dataclasses import replace

import numpy as np
import pytest
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, model_cache
from hybrid_blocks.tools.replay import replay as replayed
from hybrid_blocks.tools.trace import generate_workload


@pytest.mark.parametrize(("load", "least"), [("tools", 0.6), ("agents", 0.45)])
def test_where_requests_fill_the_memory_they_leave_each_other_room(load: str, least: float) -> None:
    trace = generate_workload(load, num_requests=200)
    result, _ = replayed(
        replace(trace, arrival=np.zeros_like(trace.arrival)),
        manager_name=ManagerName.RUST,
        cache=model_cache("Qwen3.5-27B", 12 * 2**30, Deployment(in_flight_batches=1)),
        config=EngineConfig(max_num_seqs=32, watermark=0.0, reject_too_large=True),
    )
    assert result.hit_rate > least
    assert result.preemptions == 0
