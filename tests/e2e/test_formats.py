"""A served hybrid whose checkpoints have another format finds as much, and answers nearly alike."""

from pathlib import Path

import models
import pytest
from formats import run

BUILD = Path(__file__).parents[2] / "build" / "e2e"

FARTHEST = {"bf16": 0.02, "int8": 0.07}
"""How far a token's log probability may move: 0.004 and 0.046 were seen.

States that come back a tenth too small move one by 0.056 and 0.083, lost ones by 0.54.
"""


@pytest.mark.full
def test_smaller_checkpoints_find_as_much_and_answer_nearly_alike() -> None:
    found, log = run(models.build("granitemoehybrid", BUILD), ["full", *FARTHEST])
    full = found["full"]
    assert full.num_conversions == 0 < sum(full.cached)
    assert "hybrid_blocks: checkpoints of group state.0: pool 2, 3 a slab" in log
    for name, farthest in FARTHEST.items():
        ours = found[name]
        assert ours.cached == full.cached
        assert ours.num_conversions > 20
        assert ours.num_poisoned > 0
        assert ours.is_idle_clean
        answers = zip(ours.tokens, full.tokens, ours.logprobs, full.logprobs, strict=True)
        distances = [
            abs(near[at] - far[at])
            for mine, theirs, near, far in answers
            for at in range(len(mine))
            if mine[: at + 1] == theirs[: at + 1]
        ]
        assert 0 < max(distances) < farthest
        assert len(distances) > 0.9 * sum(map(len, full.tokens))
