"""Offload on vLLM's CPU engine: tokens are those of an engine whose device holds everything."""

from functools import cache
from pathlib import Path
from typing import Any

import models
import pytest
from conversations import NUM_TURNS, Options, offload, several, talk
from program import is_scheduled_in_one_call
from rounds import Result
from server import ONE_BY_ONE

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]  # three engines start in turn

# Blocks of a device that is far too small for six chats, and of one that holds them all. vLLM
# starts only where the longest request fits, windows with all tokens that may be on their way.
FEW = {"qwen3_next": 28, "granitemoehybrid": 28, "gemma3_text": 60}
MANY = 200
FEW_SLABS = {"qwen3_next": 12, "granitemoehybrid": 12, "drafter": 16}
CHATS = 6
LARGE = offload(host="256MiB")


def served(kind: str, num_blocks: int, connector: Options | None, **more: Any) -> Result:
    options: Options = {}
    if kind in models.TOKENS_PER_STEP:
        options["max_num_batched_tokens"] = models.TOKENS_PER_STEP[kind]
    sizes: Options = {"num_chats": CHATS, "num_blocks": num_blocks}
    return talk(models.build(kind), connector=connector, options=options, **sizes, **more)


@cache
def large(kind: str, level: str = "off") -> Result:
    """An engine without offload on a device that holds everything."""
    return served(kind, MANY, None, level=level)


def check(result: Result, kind: str, level: str, share: float) -> None:
    """Answers are those of a large device, and as many tokens are found; some lay below."""
    expected = large(kind, level)
    assert result.tokens == expected.tokens
    assert sum(result.cached) >= share * sum(expected.cached) > 0
    assert result.metrics["vllm:external_prefix_cache_hits"] > 0
    assert ("level natural" in result.log) is (level == "natural")


@pytest.mark.parametrize("kind", ["qwen3_next", "gemma3_text"])
def test_host_memory_gives_every_hit_of_a_large_device(kind: str) -> None:
    result = served(kind, FEW[kind], LARGE)
    check(result, kind, "off", 1)
    assert result.counts["gathered"] >= result.counts["scattered"] / NUM_TURNS > 0
    assert large(kind).counts["gathered"] == large(kind).counts["scattered"] == 0


@pytest.mark.parametrize("scheduler", [ONE_BY_ONE, ""], ids=["one by one", "one call"])
@pytest.mark.parametrize("kind", ["qwen3_next", "granitemoehybrid"])
@pytest.mark.parametrize(
    ("level", "like", "share"), [("manager", "off", 1), ("natural", "natural", 0.99)]
)
def test_hits_below_the_device_are_those_of_a_large_one_at_each_level(
    level: str, like: str, share: float, kind: str, scheduler: str
) -> None:
    """Device and host memory by this project together, step by step and scheduled in one call."""
    num_blocks = (FEW_SLABS if level == "natural" else FEW)[kind]
    result = served(kind, num_blocks, LARGE, level=level + scheduler)
    check(result, kind, like, share)
    assert is_scheduled_in_one_call(result.log) is not bool(scheduler)


@pytest.mark.parametrize("kind", ["qwen3_next", "granitemoehybrid"])
def test_of_two_connectors_the_one_that_has_the_tokens_loads_them(kind: str) -> None:
    """The first has room for half of the chats, the second for all."""
    both = several(offload(host="1MiB"), LARGE)
    result = served(kind, FEW_SLABS[kind], both, level="natural")
    check(result, kind, "natural", 0.99)
    of_second = next(count for label, count in result.loads.items() if label.startswith("1"))
    assert of_second >= sum(result.loads.values()) / 2 > 0


def test_hits_beside_a_drafter_with_a_layer_of_its_own_are_those_of_a_large_device() -> None:
    """The drafter's group needs one stored block more than is loaded."""
    # Steps of one hash block end at the same tokens, whatever was found, so sums are rounded alike.
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    options = {"max_num_batched_tokens": 32, "speculative_config": drafts}
    asked: Any = {"num_chats": CHATS, "connector": LARGE, "level": "natural", "options": options}
    model = models.build_with_draft_head()
    few, many = (talk(model, num_blocks=it, **asked) for it in (FEW_SLABS["drafter"], MANY))
    assert "level natural" in few.log
    assert few.cached == many.cached
    assert few.metrics["vllm:external_prefix_cache_hits"] == sum(few.cached) > 0
    assert few.tokens == many.tokens


@pytest.mark.parametrize("level", ["off", "natural"])
def test_a_restart_keeps_the_hits_that_are_on_disk(level: str, tmp_path: Path) -> None:
    """Host memory holds half of the chats; the disk holds all, also for the next process."""
    kind = "qwen3_next"
    num_blocks = (FEW_SLABS if level == "natural" else FEW)[kind]
    connector = offload(host="1MiB", disk=f"{tmp_path}:1GiB")
    check(served(kind, num_blocks, connector, level=level), kind, level, 0.99)
    last = (NUM_TURNS - 1) * CHATS
    again = served(kind, num_blocks, connector, level=level, first_turn=NUM_TURNS - 1)
    assert again.tokens == large(kind, level).tokens[last:]
    assert sum(again.cached) >= 0.99 * sum(large(kind, level).cached[last:])
