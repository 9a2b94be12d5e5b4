"""A forward leaves the states that chunks leave which end where the checkpoints are."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import models
import pytest
import rounds
from prefill_checkpoints import Run, run
from rounds import MTP, NGRAMS, Result, Round, prompt
from traffic import PREFIX

pytestmark = pytest.mark.full

PLACES = (65, 130, 195)
KINDS = {"granitemoehybrid": 1e-5, "qwen3_next": 0.0}
"""Models, and how far a number may be off where a step has several prompts.

A product of matrices rounds by the size of its batch: 3e-7 was seen in float32.
"""


def engine(
    *, inside: bool = True, alone: bool = True, places: Sequence[int] = PLACES, **options: Any
) -> dict[str, Any]:
    return {"places": places, "inside": inside, "alone": alone, "options": options}


@cache
def runs(kind: str) -> tuple[list[Run], str]:
    engines = [
        # Without a prefix cache no rule but the budget ends chunks.
        engine(inside=False, max_num_batched_tokens=65, enable_prefix_caching=False),
        engine(),
        engine(async_scheduling=False),
        engine(alone=False),
        engine(max_num_batched_tokens=96, alone=False),
    ]
    return run(models.build(kind), engines)


@pytest.mark.parametrize("kind", KINDS)
def test_one_forward_leaves_the_bytes_of_chunks(kind: str) -> None:
    (chunks, inside, in_step, *_), log = runs(kind)
    assert chunks.num_chunks == 4 * 3
    for one in (inside, in_step):
        assert one.num_chunks == 3
        assert one.num_states == one.num_equal == chunks.num_states > 0
        assert one.tokens == chunks.tokens
    assert "hybrid_blocks: forwards leave checkpoints of prompts after any token" in log


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_several_prompts_leave_the_same_but_for_rounding(kind: str) -> None:
    (chunks, _, _, together, in_chunks), _ = runs(kind)
    assert together.num_chunks == 3 < in_chunks.num_chunks < chunks.num_chunks
    assert together.num_states == chunks.num_states
    assert together.farthest <= KINDS[kind]
    assert together.tokens == chunks.tokens
    assert 0 < in_chunks.num_states <= chunks.num_states
    assert in_chunks.farthest <= max(KINDS[kind], 0.02)


def with_drafts(
    model: Path, file: Path, drafts: dict[str, Any], *more: dict[str, Any]
) -> list[Run]:
    """Run chunks, prompts alone in pieces, and ``more`` engines, each in a process of its own.

    vLLM sets its kernels for drafts on a CPU up once in a process.
    """
    engines = [
        engine(inside=False, max_num_batched_tokens=65, enable_prefix_caching=False),
        engine(),
        *more,
    ]
    for one in engines:
        one["options"]["speculative_config"] = drafts
    chunks, inside, *others = [run(model, [one], file)[0][0] for one in engines]
    assert (chunks.num_chunks, inside.num_chunks) == (4 * 3, 3)
    assert inside.num_states == inside.num_equal == chunks.num_states > 0
    # On a CPU, vLLM's convolution of Mamba-2 keeps the inputs of drafts that were wrong.
    assert inside.tokens == chunks.tokens or model.name == "granitemoehybrid"
    return [chunks, *others]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_change_no_state_of_a_prompt(kind: str, tmp_path: Path) -> None:
    with_drafts(models.build(kind), tmp_path / "states", NGRAMS)


def test_prompts_beside_decodes_with_drafts_leave_the_same_but_for_rounding(tmp_path: Path) -> None:
    """Beside drafts, vLLM's CPU kernel fails at a chunk of one token, which a budget of 96 cuts."""
    together = engine(alone=False, max_num_batched_tokens=128)
    # The second piece has one token.
    short = engine(places=[65, 66, 130, 195])
    chunks, *others = with_drafts(
        models.build_with_draft_head(), tmp_path / "states", MTP, together, short
    )
    assert 0 < others[0].num_states <= others[1].num_states == chunks.num_states
    assert max(one.farthest for one in others) <= 0.02


QUESTIONS = [f"{PREFIX} Question {number}: what is {number * 7}?" for number in range(4)]

SERVED: dict[str, tuple[Callable[[], Path], dict[str, Any] | None]] = {
    **{kind: (partial(models.build, kind), None) for kind in KINDS},
    # vLLM's CPU engine forgets wrong drafts in GatedDeltaNet alone, so answers are equal there.
    "n-grams": (partial(models.build, "qwen3_next"), NGRAMS),
    "MTP": (models.build_with_draft_head, MTP),
}


def served(name: str, forward: str) -> Result:
    """Ask in turn, and again: places of checkpoints are the same, however states reach them."""
    build, drafts = SERVED[name]
    asked: list[Round] = [[prompt(text, logprobs=0)] for text in QUESTIONS * 2]
    variables = {"HYBRID_BLOCKS_FORWARD": forward, "HYBRID_BLOCKS_CHECKPOINTS": "every:64"}
    options: dict[str, Any] = {"max_num_batched_tokens": 1024}
    options |= {"speculative_config": drafts} if drafts else {}
    return rounds.run(build(), "natural", asked, options, poison=True, variables=variables)


@pytest.mark.parametrize("name", SERVED)
def test_prompts_find_what_forwards_left_as_if_chunks_had_ended_there(name: str) -> None:
    pieces, whole = (served(name, forward) for forward in ("pieces", "whole"))
    assert "forwards leave checkpoints of prompts after any token" in pieces.log
    assert "HYBRID_BLOCKS_FORWARD=whole" in whole.log
    assert pieces.cached == whole.cached
    assert sum(pieces.cached) > 0
    assert pieces.tokens == whole.tokens
    assert pieces.counts["poisoned"] > 0
    assert pieces.is_idle_clean
    if SERVED[name][1]:
        # No draft of n-grams is right: random weights repeat nothing.
        counted = "accepted" if name == "MTP" else "draft"
        assert pieces.metrics[f"vllm:spec_decode_num_{counted}_tokens"] > 0
