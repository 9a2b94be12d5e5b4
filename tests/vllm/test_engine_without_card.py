"""vLLM's whole engine core serves on a card that computes nothing, at each level."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_blocks.geometry.step_time import step_time
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.doctor.environment import allow_no_gpu
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, VirtualEngine, make_manager
from hybrid_blocks.tools.replay.cache import model_cache
from hybrid_blocks.tools.replay.config import default_clock
from loads import generate

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served() -> dict[str, dict[str, Any]]:
    """The counts of the same requests at each side."""
    left_out = {"VLLM_TARGET_DEVICE", *(name for name in os.environ if "HYBRID_BLOCKS" in name)}
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "benches/engine"), "check"],
        env=variables | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["side"]: row for row in rows}


@pytest.mark.parametrize(
    ("side", "level", "package"),
    [
        ("vLLM", "off", "vllm"),
        ("one by one", "manager", "vllm"),
        ("one call", "manager", "hybrid_blocks"),
        ("natural", "natural", "hybrid_blocks"),
    ],
)
def test_each_request_gets_all_its_tokens(
    served: dict[str, dict[str, Any]], side: str, level: str, package: str
) -> None:
    row = served[side]
    assert (row["level"], row["scheduler"].split(".")[0]) == (level, package)
    assert row["scheduler"].endswith(".AsyncScheduler")
    assert row["in_flight"] == 2
    assert row["requests"] == row["first_tokens"] == 200
    assert row["tokens"] == row["asked"] == sum(1 + number % 150 for number in range(200))
    # The prompts take four steps, and the longest request samples in the last of them.
    assert 150 <= row["steps"] <= 156


@pytest.mark.parametrize(
    ("side", "manager"), [("vLLM", ManagerName.VLLM), ("natural", ManagerName.RUST)]
)
def test_a_replay_has_the_times_of_the_engine(
    served: dict[str, dict[str, Any]], side: str, manager: ManagerName
) -> None:
    allow_no_gpu()
    deployment = Deployment(card="H100-80GB", max_num_seqs=1024, in_flight_batches=2)
    clock = step_time(load_model("Qwen3.5-27B"), deployment) or default_clock()
    limits: Any = {"max_num_seqs": 1024, "watermark": 0.0}
    config = EngineConfig(step_time=clock, async_scheduling=True, **limits)
    cache = model_cache("LFM2-1.2B", "4GiB", deployment)
    trace = generate("conversations", num_requests=60)
    engine = VirtualEngine(trace, make_manager(manager, cache, config), cache, config)
    engine.run()
    first, each = (1e3 * engine.latencies.of(kind) for kind in ("ttft", "tpot"))
    replayed = {
        "tokens_s": engine.counters.output_tokens / engine.now,
        "first_ms": first.mean(),
        "first_p50_ms": np.percentile(first, 50),
        "first_p95_ms": np.percentile(first, 95),
        "token_p50_ms": np.percentile(each, 50),
    }
    row = served[side]["arriving"]
    assert {name: row[name] for name in replayed} == pytest.approx(replayed, rel=0.01)
    config = replace(config, async_scheduling=False)
    engine = VirtualEngine(trace, make_manager(manager, cache, config), cache, config)
    engine.run()
    without = 1e3 * engine.latencies.of("ttft").mean()
    assert row["first_ms"] != pytest.approx(without, rel=0.01), "no step was in flight"
