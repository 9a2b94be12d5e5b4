"""A shadow of a recorded scheduler of vLLM finds of each request what that scheduler found."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.model import load_model
from hybrid_blocks.recording.recorder import BEGAN
from hybrid_blocks.tools.cli.shadow import make_replays
from hybrid_blocks.tools.plan import Deployment, plan_vllm
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.tools.replay import EngineConfig, VllmOptions, model_cache
from hybrid_blocks.tools.replay.managers.vllm_adapter import BlockSizes, make_groups
from hybrid_blocks.tools.shadow.follow import Follower
from hybrid_blocks.tools.shadow.publish import run
from hybrid_blocks.tools.shadow.shadow import Shadow
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.vllm import install, recorder
from hybrid_blocks.vllm.level import Level
from loads import generate
from natural.engine import Engine
from natural.served import Served
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig

MODEL, MEMORY, NUM_REQUESTS, AT_ONCE = "Qwen3.5-27B", 6 << 30, 80, 8
LENGTH, BUDGET, ROUND_S = 40_000, 2048, 1000.0
DEPLOYMENT = Deployment(
    max_model_len=LENGTH, max_num_batched_tokens=BUDGET, max_num_seqs=AT_ONCE, in_flight_batches=1
)


def planned_for(level: Level) -> tuple[Any, int]:
    """The cache that an engine of a level has, and the tokens of a hash."""
    model = load_model(MODEL)
    if level is Level.NATURAL:
        config: Any = Engine(model, DEPLOYMENT, MEMORY).scheduler_config()
        return config, min(it.kv_cache_spec.block_size for it in config.kv_cache_groups)
    plan = plan_vllm(model, MEMORY, DEPLOYMENT)
    groups = make_groups(plan, DEPLOYMENT, None)
    sizes = BlockSizes.of(groups, 0, None)
    config = KVCacheConfig(
        num_blocks=plan.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=sizes.retention,
    )
    return config, sizes.hash_block


def live(level: Level, trace: Trace) -> None:
    """Serve rounds of requests: in each the first alone for a step, as it arrives first."""
    config, hash_block = planned_for(level)
    scheduler: Any = scheduler_over(
        config,
        num_requests=AT_ONCE,
        max_model_len=LENGTH,
        max_num_batched_tokens=BUDGET,
        hash_block_size=hash_block,
        scheduler_cls=Scheduler,
    )
    engine = Served(scheduler, config, make_hasher(hash_block))
    for number in range(len(trace)):
        tokens, num_prompt = trace.token_ids(number).tolist(), int(trace.prompt_tokens[number])
        engine.add(str(number), tokens[:num_prompt], tokens[num_prompt:])
        place = number % AT_ONCE
        arrival = BEGAN + ROUND_S * (number // AT_ONCE) + 1e-6 * place
        scheduler.requests[str(number)].arrival_time = arrival
        if place == 0:
            engine.step()
        elif place == AT_ONCE - 1:
            while scheduler.requests:
                engine.step()


@pytest.fixture(params=[Level.OFF, Level.NATURAL])
def level(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Level]:
    level: Level = request.param
    monkeypatch.setenv("HYBRID_BLOCKS", level)
    monkeypatch.setenv(recorder.VARIABLE, str(tmp_path / "traffic.jsonl.zst"))
    recorder.install()
    if level is not Level.OFF:
        install.install(level)
    yield level
    install.uninstall()
    recorder.uninstall()


def test_the_replay_of_the_engines_level_finds_what_the_engine_found(
    level: Level, tmp_path: Path
) -> None:
    trace = generate("conversations", 2, NUM_REQUESTS)
    live(level, trace)
    recorder.uninstall()
    install.uninstall()
    config = EngineConfig(
        max_num_seqs=AT_ONCE,
        max_num_batched_tokens=BUDGET,
        watermark=0.0,
        reject_too_large=True,
        prefill_checkpoint_alignment=None,
    )
    cache = model_cache(MODEL, MEMORY, DEPLOYMENT)
    said: list[str] = []
    own = "natural" if level is Level.NATURAL else "vllm"
    shadow = Shadow(
        partial(make_replays, cache, config, VllmOptions()), own, said.append, is_fitted=False
    )
    with closing(Follower(tmp_path / "traffic.jsonl.zst")) as follower:
        run(shadow, follower, None, {}, once=True)
    counts = shadow.counts
    assert counts["compared", ""] == NUM_REQUESTS, said
    assert counts["found_tokens", "engine"] > 0
    assert counts["differing", ""] == 0, said
