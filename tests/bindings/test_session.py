"""Sessions, clients and hints as arguments."""

import numpy as np
import pytest
from hybrid_blocks import BlockManager, CheckpointPolicy, GroupSpec, block_hasher
from hybrid_blocks.errors import InvalidArgumentError


def manager() -> BlockManager:
    return BlockManager([GroupSpec("full", 16)], block_hasher(block_size=16), num_blocks=64)


@pytest.mark.parametrize("hint", [None, "none", "going_on", "paused", "done", "compacted"])
def test_hints_are_taken_and_change_nothing_that_is_hit(hint: str | None) -> None:
    core = manager()
    tokens = np.arange(100, dtype=np.int32)
    handle = core.add_request("a", tokens, session_id="s", client=7, hint=hint)
    core.set_hint(handle, hint)
    core.allocate(np.array([handle]), np.array([100], dtype=np.int32))
    core.advance(np.array([handle]), np.array([100], dtype=np.int32))
    core.free(np.array([handle]))
    assert core.match_prefix(core.add_request("b", tokens, session_id="s")) == 96


def test_what_is_no_hint_or_client_is_refused_and_nothing_is_added() -> None:
    core = manager()
    tokens = np.arange(10, dtype=np.int32)
    with pytest.raises(InvalidArgumentError, match="going_on"):
        core.add_request("a", tokens, hint="maybe")
    with pytest.raises(InvalidArgumentError, match="below 1024"):
        core.add_request("a", tokens, client=1024)
    assert core.num_requests == 0


def test_a_hint_for_a_session_that_is_not_known_says_so() -> None:
    core = manager()
    assert not core.set_session_hint("s", "done")
    core.add_request("a", np.arange(10, dtype=np.int32), session_id="s")
    assert core.set_session_hint("s", None)
    with pytest.raises(InvalidArgumentError, match="going_on"):
        core.set_session_hint("s", "maybe")


def test_prompt_margins_are_learned_one_or_several() -> None:
    assert CheckpointPolicy().options["prompt_margin"] is None
    assert CheckpointPolicy(prompt_margin=128).options["prompt_margin"] == (128,)
    assert CheckpointPolicy(prompt_margin=[1024, 128]).options["prompt_margin"] == (128, 1024)
    with pytest.raises(InvalidArgumentError, match="distances"):
        CheckpointPolicy(prompt_margin=[])


def test_a_placement_is_read_and_written_as_text() -> None:
    policy = CheckpointPolicy("every:250", finish=False, max_per_request=9)
    assert str(policy) == "learned/finish=false/every=250/max_per_request=9"
    assert CheckpointPolicy(str(policy)) == policy
    assert CheckpointPolicy(**policy.options) == policy
    assert policy.options["format"] == "full"
    assert str(CheckpointPolicy("every:250", format="int8")) == "learned/every=250/format=int8"
    assert repr(CheckpointPolicy("geometric")) == "CheckpointPolicy('fixed:128+1024+8192')"
    for refused in ("best", "every:0", "learned/size=3"):
        with pytest.raises(InvalidArgumentError, match="placement; "):
            CheckpointPolicy(refused)
    with pytest.raises(InvalidArgumentError, match="finish='3': use true, false"):
        CheckpointPolicy(finish=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="every='-1': use a number of tokens, none"):
        CheckpointPolicy(every=-1)
