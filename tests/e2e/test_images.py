"""A hybrid model with a vision tower answers as vLLM does, at each level and in one call.

Its prompts have images in front and behind; they are found again by what the images show.
"""

from functools import cache
from itertools import chain
from operator import eq
from pathlib import Path
from typing import Any

import models
import pytest
from images import IMAGE, Prompt, Result, run
from program import is_scheduled_in_one_call
from server import ONE_BY_ONE
from traffic import PREFIX

BUILD = Path(__file__).parents[2] / "build" / "e2e"
pytestmark = pytest.mark.timeout(1800)

BLOCK = 256  # vLLM's own for this model
LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    "off": ("off", {}),
    "manager": ("manager" + ONE_BY_ONE, {}),
    "batched": ("manager", {}),
    "natural-batched": ("natural", {"block_size": BLOCK}),
}
NUM_PROMPTS = 8
NUM_OTHERS = 4  # one prompt of that many has no image


def prompts(*, first: int, last: int) -> list[Prompt]:
    """Prompts with an image in front and one behind a text, and some with the text alone."""
    found: list[Prompt] = []
    for number in range(NUM_PROMPTS):
        text = f"{PREFIX[number : number + 300]} Number {number}"
        if number % NUM_OTHERS:
            found.append((f"{IMAGE} {text} {IMAGE}?", [first + number, last + number]))
        else:
            found.append((text, []))
    return found


ROUNDS = {
    "first": prompts(first=0, last=100),
    "same images": prompts(first=0, last=100),
    "other image in front": prompts(first=50, last=100),
    "other image behind": prompts(first=0, last=150),
}


@cache
def served(level: str) -> Result:
    plugin, options = LEVELS[level]
    return run(models.build_with_images(BUILD), plugin, list(ROUNDS.values()), options)


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(level, marks=() if level == "batched" else pytest.mark.full)
        for level in LEVELS
        if level != "off"
    ],
)
def test_prompts_with_images_answer_as_without_the_plugin(level: str) -> None:
    plain, ours = served("off"), served(level)
    assert plain.again == plain.answers, "over an empty cache vLLM repeats itself"
    assert ours.again == ours.answers
    assert ours.is_idle_clean
    assert is_scheduled_in_one_call(ours.log) is level.endswith("batched")
    assert f"level {LEVELS[level][0].removesuffix(ONE_BY_ONE)}" in ours.log
    if level.startswith("natural"):
        # bfloat16: other batches round otherwise. A wrong image changes all that follows from it.
        theirs = chain.from_iterable(plain.answers)
        equal = sum(map(eq, chain.from_iterable(ours.answers), theirs))
        assert equal >= NUM_PROMPTS * len(ROUNDS) * 9 // 10
    else:
        assert ours.answers == plain.answers
        assert ours.cached == plain.cached


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(level, marks=() if level in {"off", "batched"} else pytest.mark.full)
        for level in LEVELS
    ],
)
def test_the_same_image_hits_and_another_one_does_not(level: str) -> None:
    result = served(level)
    cached = dict(zip(ROUNDS, result.cached, strict=True))
    answers = dict(zip(ROUNDS, result.answers, strict=True))
    assert not any(cached["first"])
    assert min(cached["same images"]) >= BLOCK
    for number in range(NUM_PROMPTS):
        has_images = number % NUM_OTHERS > 0
        in_front = cached["other image in front"][number]
        assert in_front == (0 if has_images else cached["same images"][number])
        assert cached["other image behind"][number] >= BLOCK
        # The content of an image decides the answer behind it.
        is_other = answers["other image behind"][number] != answers["first"][number]
        assert is_other is has_images
