"""A served hybrid whose checkpoints have another format finds as much, and answers nearly alike."""

import models
import pytest
from rounds import Result, Round, prompt, run
from traffic import PREFIX

FARTHEST = {"bf16": 0.02, "int8": 0.07}
"""How far a token's log probability may move: 0.004 and 0.046 were seen.

States that come back a tenth too small move one by 0.056 and 0.083, lost ones by 0.54.
"""
# Few enough slabs to be poisoned quickly.
OPTIONS = {"max_num_batched_tokens": 256, "num_gpu_blocks_override": 64}


def served(state_format: str) -> Result:
    questions, stories = (
        [prompt(text, logprobs=0) for text in texts]
        for texts in (
            [f"{PREFIX} Question {number}: what is {number * 7}?" for number in range(4)],
            [f"Story {number}. {PREFIX[number : number + 200]}" for number in range(6)],
        )
    )
    first: Round = questions[:1]
    rounds = [first, first, questions, stories, questions + stories]
    variables = {"HYBRID_BLOCKS_CHECKPOINTS": f"learned/format={state_format}"}
    model = models.build("granitemoehybrid")
    return run(model, "natural", rounds, OPTIONS, poison=True, variables=variables)


def logprobs(result: Result) -> list[list[float]]:
    return [[next(iter(at.values())) for at in it["likeliest"]] for it in result.answers]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_smaller_checkpoints_find_as_much_and_answer_nearly_alike() -> None:
    full = served("full")
    assert full.counts["converted"] == 0 < sum(full.cached)
    for name, farthest in FARTHEST.items():
        ours = served(name)
        assert "hybrid_blocks: checkpoints of group state.0: pool 2, " in ours.log
        assert ours.cached == full.cached
        assert ours.counts["converted"] > 20
        assert ours.counts["poisoned"] > 0
        assert ours.is_idle_clean
        answers = zip(ours.tokens, full.tokens, logprobs(ours), logprobs(full), strict=True)

        def alike(mine: list[int], theirs: list[int]) -> list[int]:
            return [at for at in range(len(mine)) if mine[: at + 1] == theirs[: at + 1]]

        distances = [abs(near[at] - far[at]) for *both, near, far in answers for at in alike(*both)]
        assert 0 < max(distances) < farthest
        assert len(distances) > 0.9 * sum(map(len, full.tokens))
