"""Mistakes and gaps of vLLM itself in the copies and states of its own plan."""

import pytest
from hybrid_blocks.errors import IntegrityError
from hybrid_blocks.vllm.level import Level
from oracle.engines import full

from .test_draft_borders import Most, answer, border_mix
from .test_fake_worker import Mix, live, started, state

LEVELS = [Level.OFF, Level.MANAGER]
"""vLLM alone, and with the same decisions from this package."""


@pytest.mark.parametrize("level", LEVELS)
def test_vllm_loses_the_first_of_two_borders_in_a_step(level: Level) -> None:
    """Four drafts over blocks of four: 4 and 8 tokens end in one step, and the state after 4 is
    nowhere. vLLM lets it be found all the same, and the check says so."""
    with started(border_mix(4, 4), level, Most(1), is_async=False) as engine:
        tokens, _ = answer(engine, [1] * 3, 6)
        engine.add([*tokens[:4], 96, 96], 1)
        with pytest.raises(IntegrityError, match="no state at a border, not after 4"):
            engine.finish()


@pytest.mark.parametrize("level", LEVELS)
def test_vllm_copies_from_a_copy_of_the_same_step(level: Level) -> None:
    """A prompt hits a part of a block and fills its copy of it. Another prompt of that step hits a
    part of the copy: it gets what the first copy replaces, as all sources are read first."""
    groups = full(16), state(2), state(2), full(16)
    mix = Mix(groups, 120, 2, hash_block_size=4, drafter=3, retention_interval=0)
    with pytest.raises(IntegrityError, match="the destination of a copy, and of another or a"):
        live(mix, level, 17, 60, is_async=True)


@pytest.mark.parametrize("level", [*LEVELS, Level.NATURAL])
def test_vllm_copies_for_a_request_that_is_preempted_in_its_own_step(level: Level) -> None:
    """The source is free when the worker copies it, and still holds its state; the key of that
    state has moved to the copy. All requests read what their tokens wrote."""
    mix = Mix((full(16), state()), 16, hash_block_size=4, is_priority=True)
    engine = live(mix, level, 0, 150, is_async=False)
    assert engine.num_preemptions > 0
    assert engine.worker.num_freed_sources == (0 if level is Level.NATURAL else 1)
