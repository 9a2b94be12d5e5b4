"""A forward leaves the states that chunks leave which end where the checkpoints are."""

from functools import cache
from pathlib import Path
from typing import Any

import models
import pytest
import rounds
from prefill_checkpoints import Run, run
from rounds import MTP, NGRAMS, Result, Round, prompt
from traffic import PREFIX

pytestmark = pytest.mark.full

PLACES = [65, 130, 195]
KINDS = {"granitemoehybrid": 1e-5, "qwen3_next": 0.0}
"""Models, and how far a number may be off where a step has several prompts.

A product of matrices rounds by the size of its batch: 3e-7 was seen in float32.
"""


def engine(*, inside: bool = True, alone: bool = True, **options: Any) -> dict[str, Any]:
    return {"places": PLACES, "inside": inside, "alone": alone, "options": options}


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


def with_drafts(model: Path, file: Path, drafts: dict[str, Any], **together: Any) -> list[Run]:
    """Run chunks, prompts alone, and if ``together`` says how, prompts in one step.

    Each engine has a process: vLLM sets its kernels for drafts on a CPU up once in one.
    """
    own: dict[str, Any] = {"speculative_config": drafts}
    engines = [
        engine(inside=False, max_num_batched_tokens=65, enable_prefix_caching=False, **own),
        engine(**own),
    ]
    if together:
        engines.append(engine(alone=False, **together, **own))
    return [run(model, [one], file)[0][0] for one in engines]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_change_no_state_of_a_prompt(kind: str, tmp_path: Path) -> None:
    chunks, inside = with_drafts(models.build(kind), tmp_path / "states", NGRAMS)
    assert inside.num_states == inside.num_equal == chunks.num_states > 0
    # On a CPU, vLLM's convolution of Mamba-2 keeps the inputs of drafts that were wrong.
    assert inside.tokens == chunks.tokens or kind == "granitemoehybrid"


def test_prompts_beside_decodes_with_drafts_leave_the_same_but_for_rounding(tmp_path: Path) -> None:
    """Pieces have two tokens or more: beside drafts, vLLM's CPU kernel fails at a prompt's one."""
    model, file = models.build_with_draft_head(), tmp_path / "states"
    chunks, inside, together = with_drafts(model, file, MTP, max_num_batched_tokens=128)
    assert inside.num_states == inside.num_equal == chunks.num_states > 0
    assert inside.tokens == chunks.tokens
    assert 0 < together.num_states <= chunks.num_states
    assert together.farthest <= 0.02


QUESTIONS = [f"{PREFIX} Question {number}: what is {number * 7}?" for number in range(4)]


def served(kind: str, forward: str) -> Result:
    """Ask in turn, and again: places of checkpoints are the same, however states reach them."""
    asked: list[Round] = [[prompt(text, logprobs=0)] for text in QUESTIONS * 2]
    variables = {"HYBRID_BLOCKS_FORWARD": forward, "HYBRID_BLOCKS_CHECKPOINTS": "every:64"}
    options = {"max_num_batched_tokens": 1024}
    return rounds.run(
        models.build(kind), "natural", asked, options, poison=True, variables=variables
    )


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_find_what_forwards_left_as_if_chunks_had_ended_there(kind: str) -> None:
    pieces, whole = (served(kind, forward) for forward in ("pieces", "whole"))
    assert "forwards leave checkpoints of prompts after any token" in pieces.log
    assert "HYBRID_BLOCKS_FORWARD=whole" in whole.log
    assert pieces.cached == whole.cached
    assert sum(pieces.cached) > 0
    assert pieces.tokens == whole.tokens
    assert pieces.counts["poisoned"] > 0
    assert pieces.is_idle_clean
