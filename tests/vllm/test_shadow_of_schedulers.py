"""A shadow of a recorded scheduler of vLLM finds of each request what that scheduler found."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hybrid_blocks.model import load_model
from hybrid_blocks.recording.recorder import BEGAN
from hybrid_blocks.tools.cli import app
from hybrid_blocks.tools.cli.shadow import make_replays, shadow_command
from hybrid_blocks.tools.plan import Deployment, plan_vllm
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.tools.replay import EngineConfig, VllmOptions, model_cache
from hybrid_blocks.tools.replay.managers.vllm_adapter import BlockSizes, make_groups
from hybrid_blocks.tools.shadow.publish import run
from hybrid_blocks.tools.shadow.shadow import Counts, Shadow
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.tools.trace.recorded import parse, split_digests
from hybrid_blocks.vllm import install, recorder
from hybrid_blocks.vllm.level import Level
from loads import generate
from msgspec.structs import replace
from natural.engine import Engine
from natural.served import Served
from typer.testing import CliRunner
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig

MODEL, MEMORY, NUM_REQUESTS, AT_ONCE = "Qwen3.5-27B", 6 << 30, 80, 8
LENGTH, BUDGET, ROUND_S = 40_000, 2048, 1000.0
DEPLOYMENT = Deployment(
    max_model_len=LENGTH, max_num_batched_tokens=BUDGET, max_num_seqs=AT_ONCE, in_flight_batches=1
)


def planned_for(level: Level, block_size: int | None = None) -> tuple[Any, int]:
    """The cache that an engine of a level has, and the tokens of a hash."""
    model, deployment = load_model(MODEL), replace(DEPLOYMENT, block_size=block_size)
    if level is Level.NATURAL:
        config: Any = Engine(model, DEPLOYMENT, MEMORY).scheduler_config()
        return config, min(it.kv_cache_spec.block_size for it in config.kv_cache_groups)
    plan = plan_vllm(model, MEMORY, deployment)
    groups = make_groups(plan, deployment, None)
    sizes = BlockSizes.of(groups, 0, None)
    config = KVCacheConfig(
        num_blocks=plan.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=sizes.retention,
    )
    return config, sizes.hash_block


def live(level: Level, trace: Trace, block_size: int | None) -> None:
    """Serve rounds of requests: in each the first alone for a step, as it arrives first."""
    config, hash_block = planned_for(level, block_size)
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


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Serve the same requests at a level; return the record."""

    def served(level: Level, block_size: int | None = None) -> Path:
        path = tmp_path / f"{level}.jsonl.zst"
        monkeypatch.setenv("HYBRID_BLOCKS", level)
        monkeypatch.setenv(recorder.VARIABLE, str(path))
        recorder.install()
        try:
            if level is not Level.OFF:
                install.install(level)
            live(level, generate("conversations", 2, NUM_REQUESTS), block_size)
        finally:
            install.uninstall()
            recorder.uninstall()
        return path

    return served


def shadowed(path: Path, own: str, said: list[str]) -> Counts:
    """Follow a record to its end."""
    config = EngineConfig(
        max_num_seqs=AT_ONCE,
        max_num_batched_tokens=BUDGET,
        watermark=0.0,
        reject_too_large=True,
        prefill_checkpoint_alignment=None,
    )
    cache = model_cache(MODEL, MEMORY, DEPLOYMENT)
    shadow = Shadow(
        partial(make_replays, cache, config, VllmOptions()),
        own,
        said.append,
        is_fitted=False,
        block_tokens=cache.geometry.hash_block_size,
    )
    run(path, lambda _: shadow, once=True)
    return shadow.counts


def structure(path: Path) -> list[list[int]]:
    """Number the digests of a record as they first appear, by the time of arrival."""
    lines = sorted(map(parse, read_lines(path)), key=lambda line: line.arrival)
    assert {line.block_tokens for line in lines} == {16}
    numbers: dict[str, int] = {}
    return [
        [numbers.setdefault(it, len(numbers)) for it in split_digests(line.blocks)]
        for line in lines
    ]


def read_lines(path: Path) -> list[bytes]:
    with zstandard.open(path) as file:
        return list(file.read().splitlines())


@pytest.mark.parametrize("level", [Level.OFF, Level.NATURAL])
def test_the_replay_of_the_engines_level_finds_what_the_engine_found(
    record: Callable[..., Path], level: Level
) -> None:
    said: list[str] = []
    own = "natural" if level is Level.NATURAL else "vllm"
    counts = shadowed(record(level), own, said)
    assert counts["compared", ""] == NUM_REQUESTS, said
    assert counts["found_tokens", "engine"] > 0
    assert counts["differing", ""] == 0, said


def test_the_command_replays_the_engines_own_settings(
    record: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", int)
    size = planned_for(Level.OFF)[0].kv_cache_groups[0].kv_cache_spec.block_size
    options = {
        "model": MODEL,
        "memory": str(MEMORY),
        "level": "off",
        "max-num-seqs": str(AT_ONCE),
        "max-num-batched-tokens": str(BUDGET),
        "block-size": str(2 * size),
    }
    command = ["shadow", str(record(Level.OFF, 2 * size)), "--once"]
    command += [text for it in options.items() for text in (f"--{it[0]}", it[1])]
    done = CliRunner().invoke(app, command)
    assert f"vllm differs from engine: 0.0% (0 of {NUM_REQUESTS} requests)" in done.output
    left_out = signature(shadow_command).parameters["watermark"].default
    assert left_out == EngineArgs.watermark


def test_a_record_of_large_blocks_tells_what_level_natural_would_find(
    record: Callable[..., Path],
) -> None:
    assert planned_for(Level.OFF)[1] > 16
    said: list[str] = []
    off, natural = record(Level.OFF), record(Level.NATURAL)
    assert structure(off) == structure(natural)
    told = shadowed(off, "vllm", said)
    assert (
        told["found_tokens", "natural"]
        == shadowed(natural, "natural", said)["found_tokens", "engine"]
    )
    assert told["found_tokens", "natural"] > told["found_tokens", "engine"] > 0
    assert not [line for line in said if "tells apart" in line]
