"""Level ``natural`` answers as vLLM does, one engine in one process, with the check on.

Log probabilities are compared too: a wrong byte of a cache moves them before it changes a token.
"""

from functools import cache
from typing import Any

import models
import pytest
from rounds import NGRAMS, Result, Round, assert_close, prompt, run
from traffic import PREFIX

pytestmark = pytest.mark.full

EXACT = ["granitemoehybrid", "gemma3_text"]  # float32: no ties that rounding would decide
FEW_SLABS = 24
WITHIN = 1e-3
"""Change of a log probability that sums in another order may make in float32."""

# Requests are preempted: admissions leave nothing to those that run.
PRESSED: dict[str, Any] = {
    "num_gpu_blocks_override": FEW_SLABS,
    "max_num_seqs": 32,
    "scheduler_reserve_full_isl": False,
}

DRAFTS: dict[str, Any] = {
    "max_num_batched_tokens": 256,
    "max_num_seqs": 32,
    "speculative_config": NGRAMS,
}
QUESTIONS = [f"{PREFIX} Question {number}: what is {number * 7}?" for number in range(4)]
STORIES = [f"Story {number}. {PREFIX[number : number + 200]}" for number in range(16)]


def rounds(story_tokens: int) -> list[Round]:
    """Questions in turn and again, long stories together, and all of them at once."""
    in_turn: list[Round] = [[prompt(text, logprobs=0)] for text in QUESTIONS * 2]
    stories = [prompt(text, logprobs=0, max_tokens=story_tokens) for text in STORIES]
    return [*in_turn, stories, [prompt(text, logprobs=0) for text in (*QUESTIONS, *STORIES)]]


def served(
    kind: str,
    level: str = "natural",
    *,
    story_tokens: int = 160,
    poison: bool = False,
    **options: Any,
) -> Result:
    return run(models.build(kind), level, rounds(story_tokens), options, poison=poison)


@cache
def stock(kind: str) -> Result:
    """vLLM alone, with as many blocks as it likes; no prompt ends a chunk inside a block."""
    return served(kind, "off", max_num_batched_tokens=256)


def test_the_copies_of_a_run_are_made_by_this_packages_kernels() -> None:
    model, options = models.build("granitemoehybrid"), {"max_num_batched_tokens": 256}
    result, plain = (
        run(model, "natural", rounds(16), options, vllms_copies=it) for it in (False, True)
    )
    assert result.counts["copied"] > 0 == plain.counts["copied"]
    assert "vLLM's own function copies" not in result.log
    assert_close(result, plain)
    assert result.cached == plain.cached


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("chunk", [37, 256])
def test_tokens_are_vllms_at_odd_chunk_sizes(kind: str, chunk: int) -> None:
    result = served(kind, max_num_batched_tokens=chunk, max_num_seqs=32)
    assert_close(result, stock(kind), WITHIN)
    assert sum(result.cached) >= sum(stock(kind).cached) > 0
    assert result.is_idle_clean
    assert "level natural; groups" in result.log


@pytest.mark.parametrize("kind", EXACT)
def test_tokens_are_vllms_under_preemption_with_freed_bytes_poisoned(kind: str) -> None:
    result = served(kind, poison=True, **PRESSED)
    assert result.metrics["vllm:num_preemptions"] > 0
    assert result.counts["poisoned"] > FEW_SLABS
    assert_close(result, stock(kind), WITHIN)
    assert result.is_idle_clean


def test_bfloat16_tokens_are_vllms_where_chunks_end_at_the_same_places() -> None:
    """With vLLM's own block of 128 tokens both round alike, so tokens are equal to the last."""
    plain = served("qwen3_next", "off")
    result = served("qwen3_next", poison=True, block_size=128, num_gpu_blocks_override=400)
    assert result.tokens == plain.tokens
    pairs = zip(result.cached, plain.cached, strict=True)
    assert all(ours >= theirs for ours, theirs in pairs)
    assert sum(plain.cached) > 0
    assert result.counts["poisoned"] > 0


@pytest.mark.parametrize("block_size", [32, 128])
def test_what_freed_bytes_hold_changes_no_token_under_preemption(block_size: int) -> None:
    """Two equal runs but for the poison; blocks of 128 tokens share their pool with states."""
    plain, poisoned = (
        served("qwen3_next", poison=it, block_size=block_size, **PRESSED) for it in (False, True)
    )
    assert poisoned.counts["poisoned"] > FEW_SLABS
    preemptions = "vllm:num_preemptions"
    assert poisoned.metrics[preemptions] == plain.metrics[preemptions] > 0
    assert_close(poisoned, plain)
    assert poisoned.is_idle_clean


def has_drafts(result: Result) -> bool:
    """Whether some drafts of a run were right and some wrong, and prompts were hit."""
    proposed, accepted = (
        result.metrics[f"vllm:spec_decode_num_{kind}_tokens"] for kind in ("draft", "accepted")
    )
    return 0 < accepted < proposed and sum(result.cached) > 0 and result.is_idle_clean


def test_float32_tokens_are_vllms_with_drafts_of_ngrams() -> None:
    plain = served("gemma3_text", "off", story_tokens=48, **DRAFTS)
    few: dict[str, Any] = {"story_tokens": 48, "num_gpu_blocks_override": 60}
    result = served("gemma3_text", poison=True, **few, **DRAFTS)
    assert has_drafts(result)
    assert result.counts["poisoned"] > 0
    assert_close(result, plain, WITHIN)


def test_most_bfloat16_tokens_are_vllms_with_drafts_of_ngrams() -> None:
    """A wrong state changes all answers that follow from it; rounding changes a few of 44."""
    sizes: dict[str, Any] = {"block_size": 128, "num_gpu_blocks_override": 400}
    plain, result = (served("qwen3_next", it, **DRAFTS, **sizes) for it in ("off", "natural"))
    assert has_drafts(result)
    pairs = zip(plain.tokens, result.tokens, strict=True)
    assert sum(one == other for one, other in pairs) >= len(plain.tokens) * 3 // 4
