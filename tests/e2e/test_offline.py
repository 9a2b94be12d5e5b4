"""Level ``natural`` answers as vLLM does, one engine in one process, with the check on."""

from functools import cache
from pathlib import Path
from typing import Any

import models
import pytest
from offline import STORY_TOKENS, Result, run

BUILD = Path(__file__).parents[2] / "build" / "e2e"
pytestmark = pytest.mark.full

EXACT = ["granitemoehybrid", "gemma3_text"]  # float32: no ties that rounding would decide
FEW_SLABS = 24

# Requests are preempted: admissions leave nothing to those that run.
PRESSED: dict[str, Any] = {
    "num_gpu_blocks_override": FEW_SLABS,
    "max_num_seqs": 32,
    "scheduler_reserve_full_isl": False,
}

DRAFTS: dict[str, Any] = {
    "max_num_batched_tokens": 256,
    "max_num_seqs": 32,
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    },
}


@cache
def stock(kind: str) -> Result:
    """vLLM alone, with as many blocks as it likes; no prompt ends a chunk inside a block."""
    return run(models.build(kind, BUILD), "off", {"max_num_batched_tokens": 256})


def natural(
    kind: str, *, poison: bool = False, story_tokens: int = STORY_TOKENS, **options: Any
) -> Result:
    model = models.build(kind, BUILD)
    return run(model, "natural", options, poison=poison, story_tokens=story_tokens)


def test_the_copies_of_a_run_are_made_by_this_packages_kernels() -> None:
    model, options = models.build("granitemoehybrid", BUILD), {"max_num_batched_tokens": 256}
    result = run(model, "natural", options, story_tokens=16)
    plain = run(model, "natural", options, story_tokens=16, vllms_copies=True)
    assert result.num_copies > 0 == plain.num_copies
    assert "vLLM's own function copies" not in result.log
    assert result.answers == plain.answers
    assert result.cached == plain.cached


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("chunk", [37, 256])
def test_tokens_are_vllms_at_odd_chunk_sizes(kind: str, chunk: int) -> None:
    result = natural(kind, max_num_batched_tokens=chunk, max_num_seqs=32)
    assert result.answers == stock(kind).answers
    assert sum(result.cached) >= sum(stock(kind).cached) > 0
    assert result.is_idle_clean
    assert "level natural; groups" in result.log


@pytest.mark.parametrize("kind", EXACT)
def test_tokens_are_vllms_under_preemption_with_freed_bytes_poisoned(kind: str) -> None:
    result = natural(kind, poison=True, **PRESSED)
    assert result.num_preemptions > 0
    assert result.num_poisoned > FEW_SLABS
    assert result.answers == stock(kind).answers
    assert result.is_idle_clean


def test_bfloat16_tokens_are_vllms_where_chunks_end_at_the_same_places() -> None:
    """With vLLM's own block of 128 tokens both round alike, so tokens are equal to the last."""
    plain = run(models.build("qwen3_next", BUILD), "off", {})
    result = natural("qwen3_next", poison=True, block_size=128, num_gpu_blocks_override=400)
    assert result.answers == plain.answers
    pairs = zip(result.cached, plain.cached, strict=True)
    assert all(ours >= theirs for ours, theirs in pairs)
    assert sum(plain.cached) > 0
    assert result.num_poisoned > 0


@pytest.mark.parametrize("block_size", [32, 128])
def test_what_freed_bytes_hold_changes_no_token_under_preemption(block_size: int) -> None:
    """Two equal runs but for the poison; blocks of 128 tokens share their pool with states."""
    plain = natural("qwen3_next", block_size=block_size, **PRESSED)
    poisoned = natural("qwen3_next", poison=True, block_size=block_size, **PRESSED)
    assert poisoned.num_poisoned > FEW_SLABS
    assert poisoned.num_preemptions == plain.num_preemptions > 0
    assert poisoned.answers == plain.answers
    assert poisoned.is_idle_clean


def test_float32_tokens_are_vllms_with_drafts_of_ngrams() -> None:
    plain = run(models.build("gemma3_text", BUILD), "off", DRAFTS, story_tokens=48)
    result = natural(
        "gemma3_text", poison=True, story_tokens=48, num_gpu_blocks_override=60, **DRAFTS
    )
    assert 0 < result.num_accepted < result.num_drafts
    assert sum(result.cached) > 0
    assert result.num_poisoned > 0
    assert result.is_idle_clean
    assert result.answers == plain.answers


def test_most_bfloat16_tokens_are_vllms_with_drafts_of_ngrams() -> None:
    """A wrong state changes all answers that follow from it; rounding changes a few of 44."""
    sizes: dict[str, Any] = {"block_size": 128, "num_gpu_blocks_override": 400}
    plain = run(models.build("qwen3_next", BUILD), "off", DRAFTS | sizes)
    result = natural("qwen3_next", **DRAFTS, **sizes)
    assert 0 < result.num_accepted < result.num_drafts
    assert sum(result.cached) > 0
    assert result.is_idle_clean
    pairs = zip(plain.answers, result.answers, strict=True)
    assert sum(one == other for one, other in pairs) >= len(plain.answers) * 3 // 4
