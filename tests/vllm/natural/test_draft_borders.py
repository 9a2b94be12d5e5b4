"""Accepted drafts that end on a block border: the check knows of the state that workers move."""

import os
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hybrid_blocks.vllm.check.life import Life
from hybrid_blocks.vllm.level import Level
from oracle.engines import full, sliding

from .fake_worker_engine import FakeEngine
from .test_fake_worker import Mix, live, started, state

ENGINES = [
    (Level.OFF, False),
    (Level.POOL, False),
    (Level.MANAGER, False),
    (Level.MANAGER, True),
    (Level.NATURAL, False),
    (Level.NATURAL, True),
]
"""Levels, and whether their scheduler is that of one call."""

KINDS = [(*engine, is_async) for engine in ENGINES for is_async in (False, True)]


class Most(Random):
    """Draws the largest number that may be drawn: all drafts, and long chunks."""

    def randint(self, _: int, most: int) -> int:
        return most

    def choice(self, values: Any) -> Any:
        return values[-1]


def border_mix(num_drafts: int, block_size: int, interval: int | None = None) -> Mix:
    """Return attention and states whose drafts are all right."""
    return Mix(
        (full(block_size), state(num_drafts, block_size=block_size)),
        40,
        num_drafts,
        hash_block_size=block_size,
        retention_interval=interval,
        share_accepted=1.0,
    )


def answer(engine: FakeEngine, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], int]:
    """Return all tokens of a request that runs alone, and how many of them were cached."""
    before = engine.num_cached_tokens
    request = engine.add(list(prompt), max_tokens)
    engine.finish()
    return list(request.all_token_ids), engine.num_cached_tokens - before


@pytest.mark.parametrize("interval", [None, 16])
@pytest.mark.parametrize(("level", "is_one_call", "is_async"), KINDS)
def test_a_prompt_goes_on_from_drafts_that_ended_on_a_border(
    level: Level, is_one_call: bool, is_async: bool, interval: int | None
) -> None:
    mix = border_mix(1, 16, interval if level is not Level.NATURAL else None)
    with started(mix, level, Most(1), is_async=is_async, is_one_call=is_one_call) as engine:
        tokens, _ = answer(engine, [1] * 12, 5)
        _, num_cached = answer(engine, [*tokens, 1, 1], 5)
    assert len(tokens) == 17
    # At level natural, only prompts leave states where there are drafts; the last of this one's
    # tokens is always computed.
    assert num_cached == (8 if level is Level.NATURAL else 16)


@pytest.mark.parametrize("is_preempted", [False, True], ids=["paused", "preempted"])
def test_a_prompt_goes_on_from_a_request_that_is_not_done(is_preempted: bool) -> None:
    """The state at the border is there as soon as the drafts are accepted."""
    with started(border_mix(1, 16), Level.OFF, Most(1), is_async=False) as engine:
        request = engine.add([1] * 12, 20)
        while request.num_computed_tokens < 16:
            engine.step()
        assert request.num_computed_tokens == 16
        if is_preempted:
            engine.scheduler.running.remove(request)
            engine.scheduler._preempt_request(request, 0.0)
        engine.add([*request.all_token_ids[:17], 1, 1], 5)
        engine.finish()
    assert engine.num_cached_tokens >= 16


@pytest.mark.parametrize(
    ("end", "num_drafts", "computed", "lengths"),
    [
        (16, 1, 15, (15, 15)),
        (16, 1, 16, (16, 15)),
        (17, 1, 16, (16, 16)),
        (17, 2, 17, (16, 15)),
        (18, 3, 15, (-1, 15)),
    ],
)
def test_states_after_a_step_with_drafts(
    end: int, num_drafts: int, computed: int, lengths: tuple[int, int]
) -> None:
    life = Life(None, [[], []], 16)
    life.note_chunk(end, num_drafts, 1 + num_drafts)
    assert [life.state_length(column, computed) for column in (0, 1)] == list(lengths)


def drawn_mix(draw: Random) -> Mix:
    """Draw a model with drafts, within what vLLM gets right.

    A step crosses one border of a block at most, and no request hits a part of a block: see
    ``test_vllm_mistakes.py``.
    """
    size = draw.choice((4, 8, 16))
    num_drafts = draw.randint(1, min(3, size - 1))
    groups: list[Any] = [full(size), *[state(num_drafts, block_size=size)] * draw.randint(1, 2)]
    if draw.random() < 0.3:
        groups.append(sliding(size, draw.choice((5, 20, 33))))
    has_drafter = draw.random() < 0.3
    if has_drafter:
        groups.append(full(size))
    return Mix(
        tuple(groups),
        (draw.choice((30, 40, 60)) * 16 // size) * len(groups) // 2,
        num_drafts,
        hash_block_size=size,
        drafter=len(groups) - 1 if has_drafter else None,
        retention_interval=draw.choice((None, None, size, 2 * size, 0)),
        is_priority=draw.random() < 0.4,
        share_accepted=draw.choice((0.6, 0.9, 1.0)),
    )


def live_with_drafts(seed: int, level: Level, *, is_one_call: bool, is_async: bool) -> FakeEngine:
    """Live a drawn life with accepted drafts; level natural knows no interval.

    Every second life of level natural leaves states inside chunks.
    """
    mix = drawn_mix(Random(seed))
    if level is Level.NATURAL:
        alignment = 1 if seed // len(KINDS) % 2 else None
        mix = replace(mix, retention_interval=None, prefill_checkpoint_alignment=alignment)
    return live(mix, level, seed, 60, is_async=is_async, is_one_call=is_one_call)


NUM_LIVES = int(os.environ.get("HYBRID_BLOCKS_DRAFT_LIVES", "1"))
"""Lives of each kind; a hundred take about as many minutes as there are kinds."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "kind", range(len(KINDS)), ids=lambda kind: "-".join(map(str, KINDS[kind]))
)
def test_lives_with_accepted_drafts_raise_no_alarm(kind: int) -> None:
    level, is_one_call, is_async = KINDS[kind]
    for seed in range(kind, len(KINDS) * NUM_LIVES, len(KINDS)):
        engine = live_with_drafts(seed, level, is_one_call=is_one_call, is_async=is_async)
        assert engine.num_finished > 0
        assert engine.worker.num_checked > 60
