"""The fixtures of ``cargo test`` are what the installed vLLM answers."""

import json

import pytest
import vllm
from hybrid_blocks.vllm.surface.support import release_of
from oracle.engines import RINGS, Engine
from recording import fixture
from recording.engines import recorded
from recording.lives import NUM_LIVES, record
from recording.recorder import Step

RELEASE = release_of(vllm.__version__) or vllm.__version__


def lives_of(part: str) -> list[list[Step]]:
    head, lives = fixture.read(fixture.path(RELEASE, part))
    assert release_of(head["vllm"]) == RELEASE
    return list(lives)


@pytest.mark.parametrize(("part", "engines"), [("", recorded()), ("-ring", RINGS)])
def test_every_engine_has_its_lives_in_the_fixture(part: str, engines: dict[str, Engine]) -> None:
    named = [(life[0]["life"], life[0]["seed"]) for life in lives_of(part)]
    assert named == [(name, seed) for name in engines for seed in range(NUM_LIVES)]


# Every life would take a minute; which ones are taken depends on nothing but their order.
@pytest.mark.parametrize(("part", "every"), [("", 11), ("-ring", 7)])
def test_a_life_recorded_anew_is_the_one_in_the_fixture(part: str, every: int) -> None:
    engines = recorded() | RINGS
    for expected in lives_of(part)[::every]:
        name, seed = expected[0]["life"], expected[0]["seed"]
        again = json.loads(json.dumps(record(name, engines[name], seed)))
        assert len(again) == len(expected), name
        for number, (line, wanted) in enumerate(zip(again, expected, strict=True)):
            assert line == wanted, f"life {name} {seed}, line {number}"
