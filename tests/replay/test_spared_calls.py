"""vLLM's manager need not be asked about every decode step, and answers as if it had been."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import (
    EngineConfig,
    ManagerName,
    Result,
    Timeline,
    VllmOptions,
    model_cache,
    replay,
)
from hybrid_blocks.tools.trace import Trace
from loads import generate

MEASURED = {"manager_us_per_step_p50", "manager_us_per_step_p99", "manager_seconds", "wall_seconds"}


def run(
    trace: Trace, model: str, gib: int, seqs: int, options: VllmOptions
) -> tuple[Result, Timeline]:
    return replay(
        trace,
        manager_name=ManagerName.VLLM,
        cache=model_cache(model, gib * 2**30, Deployment(in_flight_batches=1)),
        config=EngineConfig(max_num_seqs=seqs, watermark=0.0, reject_too_large=True),
        vllm=options,
    )


def counted(result: Result) -> dict[str, Any]:
    return {k: v for k, v in msgspec.structs.asdict(result).items() if k not in MEASURED}


@pytest.mark.vllm
@pytest.mark.parametrize("retention", [0, None, 2048])
@pytest.mark.parametrize(
    ("name", "model", "gib", "seqs"),
    [
        ("documents", "Qwen3.5-27B", 40, 16),
        ("single", "Qwen3.5-27B", 12, 64),
        ("tools", "Nemotron-H-8B", 12, 32),
        ("templates", "Granite-4.0-Micro", 2, 64),
    ],
)
def test_a_replay_is_the_same_with_and_without_the_calls(
    name: str, model: str, gib: int, seqs: int, retention: int | None
) -> None:
    trace = generate(name, 3, 40).at_once()
    options = VllmOptions(retention=retention)
    spared, timeline = run(trace, model, gib, seqs, options)
    asked, every = run(trace, model, gib, seqs, replace(options, spare_calls=False))
    assert counted(spared) == counted(asked)
    assert timeline == every
    if seqs == 64:
        assert spared.preemptions > 0
