"""A prompt that returns while memory is free is found up to its last whole block."""

import pytest
from _served_model import Case, Side, serving
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.vllm.level import CHECKPOINTS

from natural.served import Served

BLOCK = 16
LENGTHS = [16_001, 14_144, 8_193, 8_192, 8_191, *range(5_640, 5_400, -16), *range(400, 12, -33)]


def serve(served: Served, turn: str, length: int) -> int:
    """Serve a prompt alone and count its tokens that were found."""
    id_ = f"{length} {turn}"
    served.add(id_, list(range(length * 20_000, length * 20_000 + length)), [7])
    while served.scheduler.requests:
        served.step()
    return served.num_hit_tokens[id_]


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("lengths", [LENGTHS, [14_144]], ids=["all", "one"])
def test_a_prompt_is_found_up_to_its_last_whole_block(
    lengths: list[int], num_drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A short prompt saves less than a step of this card.
    monkeypatch.setenv(CHECKPOINTS, "learned")
    deployment = Deployment(
        max_model_len=16_384,
        max_num_batched_tokens=8192,
        num_speculative_tokens=num_drafts,
        in_flight_batches=1,
    )
    case = Case(load_model("Qwen3.8-27B"), 64 * 2**30, deployment, num_requests=4, inside=True)
    with serving(Side.NATURAL, case) as served:
        for length in lengths:
            serve(served, "first", length)
        found = {length: serve(served, "again", length) for length in lengths}
    assert found == {length: (length - 1) // BLOCK * BLOCK for length in lengths}
