"""Finished requests leave in memory the same contents as without a prefix cache."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import models
import pytest
from contents import Content, Result, run
from traffic import PREFIX

BUILD = Path(__file__).parents[2] / "build" / "e2e"
pytestmark = pytest.mark.full

QUESTIONS = [f"{PREFIX[:300]} Question {number}: what is {number * 7}?" for number in range(3)]
STORIES = [f"Story {number}. {PREFIX[number : number + 200]}" for number in range(12)]
ROUNDS = [QUESTIONS, QUESTIONS, STORIES, QUESTIONS + STORIES]
NUM_TOKENS = 512

KINDS = {"granitemoehybrid": 20, "gemma3_text": 24}
"""Models that compute in float32, and slabs too few for all stories at once."""

ROUNDING = 1e-3
"""Change that the order of sums may make, in deviations of a tensor; other texts make one of 1."""


@cache
def uncached(kind: str, *, chunk: int) -> Result:
    """vLLM alone, without a prefix cache, with as much memory as it likes."""
    return contents(kind, "off", enable_prefix_caching=False, max_num_batched_tokens=chunk)


def contents(kind: str, level: str, **options: Any) -> Result:
    return run(models.build(kind, BUILD), level, ROUNDS, num_tokens=NUM_TOKENS, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [37, 256])
def test_what_finished_requests_leave_is_that_of_a_run_without_a_prefix_cache(
    kind: str, chunk: int
) -> None:
    plain = uncached(kind, chunk=256)
    result = contents(
        kind,
        "natural",
        block_size=plain.block_size,
        num_gpu_blocks_override=KINDS[kind],
        max_num_batched_tokens=chunk,
        max_num_seqs=32,
    )
    assert "level natural; groups" in result.log
    assert sum(content.num_cached for content in result.contents) > 0
    assert result.num_preemptions > 0
    assert_equal(result, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_alone_change_no_more_than_rounding(kind: str) -> None:
    assert_equal(uncached(kind, chunk=37), uncached(kind, chunk=256))


@pytest.mark.parametrize("kind", KINDS)
def test_other_texts_leave_something_else(kind: str) -> None:
    first, second = uncached(kind, chunk=256).contents[6:8]  # the prompts are two stories
    assert min(differences(first, second)) > 100 * ROUNDING


def assert_equal(result: Result, expected: Result) -> None:
    pairs = list(zip(result.contents, expected.contents, strict=True))
    assert [one.tokens for one, _ in pairs] == [other.tokens for _, other in pairs]
    for one, other in pairs:
        assert one.caches.keys() == other.caches.keys()
        assert max(differences(one, other)) < ROUNDING


def differences(one: Content, other: Content) -> Iterator[float]:
    """Yield how far each tensor of a block is from the other's, at most, beside its deviation."""
    for layer, blocks in one.caches.items():
        assert max(blocks) == max(other.caches[layer])
        for position in blocks.keys() & other.caches[layer].keys():
            for mine, theirs in zip(blocks[position], other.caches[layer][position], strict=True):
                yield ((mine - theirs).abs().max() / theirs.std()).item()
