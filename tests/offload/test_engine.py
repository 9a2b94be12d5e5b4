"""Offload on vLLM's CPU engine: tokens are those of an engine whose device holds everything."""

from functools import cache
from pathlib import Path
from typing import Any

import models
import pytest
from conversations import NUM_TURNS, Result, run
from program import is_scheduled_in_one_call
from server import ONE_BY_ONE

BUILD = Path(__file__).parents[2] / "build" / "e2e"
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]  # three engines start in turn

# Blocks of a device that is far too small for six chats, and of one that holds them all. vLLM
# starts only where the longest request fits, windows with all tokens that may be on their way.
FEW = {"qwen3_next": 28, "granitemoehybrid": 28, "gemma3_text": 60}
MANY = 200
FEW_SLABS = {"qwen3_next": 12, "granitemoehybrid": 12, "drafter": 16}
CHATS = 6


def config(**options: Any) -> dict[str, Any]:
    return {
        "spec_name": "HybridOffloadingSpec",
        "spec_module_path": "hybrid_blocks.offload",
        # Hits are counted, and a small model computes sooner than a busy disk reads.
        "read": "longest",
        **options,
    }


def options_of(kind: str) -> dict[str, Any]:
    if kind not in models.TOKENS_PER_STEP:
        return {}
    return {"max_num_batched_tokens": models.TOKENS_PER_STEP[kind]}


@cache
def plain(kind: str) -> Result:
    """vLLM without offload on a device that holds everything."""
    model = models.build(kind, BUILD)
    return run(model, num_chats=CHATS, num_blocks=MANY, offload=None, options=options_of(kind))


@pytest.mark.parametrize("kind", ["qwen3_next", "gemma3_text"])
def test_host_memory_gives_every_hit_of_a_large_device(kind: str) -> None:
    model = models.build(kind, BUILD)
    result = run(model, num_chats=CHATS, num_blocks=FEW[kind], offload=config(host="256MiB"))
    assert result.answers == plain(kind).answers
    assert sum(result.cached) >= sum(plain(kind).cached) > 0
    assert result.metrics["vllm:external_prefix_cache_hits"] > 0
    assert result.num_gathered >= result.num_scattered / NUM_TURNS > 0
    assert plain(kind).num_gathered == plain(kind).num_scattered == 0


@pytest.mark.parametrize("scheduler", [ONE_BY_ONE, ""], ids=["one by one", "one call"])
@pytest.mark.parametrize("kind", ["qwen3_next", "granitemoehybrid"])
def test_hits_below_the_device_are_those_of_level_manager_too(kind: str, scheduler: str) -> None:
    """Device and host memory by this project together, step by step and scheduled in one call."""
    model = models.build(kind, BUILD)
    result = run(
        model,
        num_chats=CHATS,
        num_blocks=FEW[kind],
        offload=config(host="256MiB"),
        level="manager" + scheduler,
        options=options_of(kind),
    )
    assert result.answers == plain(kind).answers
    assert sum(result.cached) >= sum(plain(kind).cached) > 0
    assert result.metrics["vllm:external_prefix_cache_hits"] > 0
    assert is_scheduled_in_one_call(result.log) is not bool(scheduler)


@cache
def natural(kind: str) -> Result:
    """Level ``natural`` without offload, over slabs that hold everything."""
    model = models.build(kind, BUILD)
    options = options_of(kind)
    return run(
        model, num_chats=CHATS, num_blocks=MANY, offload=None, level="natural", options=options
    )


@pytest.mark.parametrize("scheduler", [ONE_BY_ONE, ""], ids=["one by one", "one call"])
@pytest.mark.parametrize("kind", ["qwen3_next", "granitemoehybrid"])
def test_hits_below_the_device_are_those_of_level_natural_too(kind: str, scheduler: str) -> None:
    """Attention in blocks of 16 tokens, and states wherever a checkpoint is."""
    model = models.build(kind, BUILD)
    result = run(
        model,
        num_chats=CHATS,
        num_blocks=FEW_SLABS[kind],
        offload=config(host="256MiB"),
        level="natural" + scheduler,
        options=options_of(kind),
    )
    assert "level natural" in result.log
    assert result.answers == natural(kind).answers
    assert sum(result.cached) >= 0.99 * sum(natural(kind).cached) > 0
    assert result.metrics["vllm:external_prefix_cache_hits"] > 0
    assert is_scheduled_in_one_call(result.log) is not bool(scheduler)


@pytest.mark.parametrize("kind", ["qwen3_next", "granitemoehybrid"])
def test_of_two_connectors_the_one_that_has_the_tokens_loads_them(kind: str) -> None:
    """The first has room for half of the chats, the second for all."""
    model = models.build(kind, BUILD)
    result = run(
        model,
        num_chats=CHATS,
        num_blocks=FEW_SLABS[kind],
        offload=[config(host="1MiB"), config(host="256MiB")],
        level="natural",
        options=options_of(kind),
    )
    assert "level natural" in result.log
    assert result.answers == natural(kind).answers
    assert sum(result.cached) >= 0.99 * sum(natural(kind).cached) > 0
    assert result.metrics["vllm:external_prefix_cache_hits"] > 0
    large = next(count for label, count in result.loads.items() if label.startswith("1"))
    assert large >= sum(result.loads.values()) / 2 > 0


def test_hits_beside_a_drafter_with_a_layer_of_its_own_are_those_of_a_large_device() -> None:
    """The drafter's group needs one stored block more than is loaded."""
    model = models.build_with_draft_head(BUILD)
    # Steps of one hash block end at the same tokens, whatever was found, so sums are rounded alike.
    options = {
        "max_num_batched_tokens": 32,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
    }

    def served(num_slabs: int) -> Result:
        return run(
            model,
            num_chats=CHATS,
            num_blocks=num_slabs,
            offload=config(host="256MiB"),
            level="natural",
            options=dict(options),
        )

    ours, large = served(FEW_SLABS["drafter"]), served(MANY)
    assert "level natural" in ours.log
    assert ours.cached == large.cached
    assert ours.metrics["vllm:external_prefix_cache_hits"] == sum(ours.cached) > 0
    assert ours.answers == large.answers


def test_a_restart_keeps_the_hits_of_level_natural_that_are_on_disk(tmp_path: Path) -> None:
    """Host memory holds half of the chats; the disk holds all, also for the next process."""
    kind = "qwen3_next"
    model = models.build(kind, BUILD)
    options: dict[str, Any] = {
        "num_chats": CHATS,
        "num_blocks": FEW_SLABS[kind],
        "offload": config(host="1MiB", disk=f"{tmp_path}:1GiB"),
        "level": "natural",
    }
    first = run(model, **options)
    assert first.answers == natural(kind).answers
    last = (NUM_TURNS - 1) * CHATS
    again = run(model, first_turn=NUM_TURNS - 1, **options)
    assert again.answers == natural(kind).answers[last:]
    assert sum(again.cached) >= 0.99 * sum(natural(kind).cached[last:])


def test_a_restart_keeps_the_hits_that_are_on_disk(tmp_path: Path) -> None:
    """Host memory holds half of the chats; the disk holds all, also for the next process."""
    kind = "qwen3_next"
    model = models.build(kind, BUILD)
    offload = config(host="1MiB", disk=f"{tmp_path}:1GiB")
    first = run(model, num_chats=CHATS, num_blocks=FEW[kind], offload=offload)
    assert first.answers == plain(kind).answers
    assert sum(first.cached) >= 0.99 * sum(plain(kind).cached)
    last = (NUM_TURNS - 1) * CHATS
    again = run(
        model, num_chats=CHATS, num_blocks=FEW[kind], offload=offload, first_turn=NUM_TURNS - 1
    )
    assert again.answers == plain(kind).answers[last:]
    assert sum(again.cached) >= 0.99 * sum(plain(kind).cached[last:])
