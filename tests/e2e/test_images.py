"""A hybrid model with a vision tower answers as vLLM does, at each level and in one call.

Its prompts have images in front and behind; they are found again by what the images show.
"""

from functools import cache
from operator import eq
from typing import Any

import models
import pytest
from program import is_scheduled_in_one_call
from rounds import Prompt, Result, prompt, run
from server import ONE_BY_ONE
from traffic import PREFIX

pytestmark = pytest.mark.timeout(1800)

BLOCK = 256  # vLLM's own for this model
LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    "off": ("off", {}),
    "manager": ("manager" + ONE_BY_ONE, {}),
    "batched": ("manager", {}),
    "natural-batched": ("natural", {"block_size": BLOCK}),
}
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
NUM_PROMPTS = 8
NUM_OTHERS = 4  # one prompt of that many has no image


def prompts(*, first: int, last: int) -> list[Prompt]:
    """Prompts with an image in front and one behind a text, and some with the text alone."""
    found: list[Prompt] = []
    for number in range(NUM_PROMPTS):
        text, images = f"{PREFIX[number : number + 300]} Number {number}", list[int]()
        if number % NUM_OTHERS:
            text, images = f"{IMAGE} {text} {IMAGE}?", [first + number, last + number]
        found.append(prompt(text) | {"images": images})
    return found


ROUNDS = {
    "first": prompts(first=0, last=100),
    "same images": prompts(first=0, last=100),
    "other image in front": prompts(first=50, last=100),
    "other image behind": prompts(first=0, last=150),
}
HALF = NUM_PROMPTS * len(ROUNDS)


@cache
def served(level: str) -> Result:
    plugin, options = LEVELS[level]
    options = options | {"max_num_batched_tokens": 256, "max_num_seqs": 4}
    options |= {"limit_mm_per_prompt": {"image": 2, "video": 0}}
    rounds = [*ROUNDS.values(), None, *ROUNDS.values()]
    return run(models.build_with_images(), plugin, rounds, options)


def by_round(values: list[Any]) -> dict[str, list[Any]]:
    """Return what belongs to each round; the pass over an empty cache is left out."""
    starts = range(0, HALF, NUM_PROMPTS)
    return {name: values[at : at + NUM_PROMPTS] for name, at in zip(ROUNDS, starts, strict=True)}


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
    for one in (plain, ours):
        assert one.tokens[:HALF] == one.tokens[HALF:], "it repeats itself over an empty cache"
    assert ours.is_idle_clean
    assert is_scheduled_in_one_call(ours.log) is level.endswith("batched")
    assert f"level {LEVELS[level][0].removesuffix(ONE_BY_ONE)}" in ours.log
    if level.startswith("natural"):
        # bfloat16: other batches round otherwise. A wrong image changes all that follows from it.
        equal = sum(map(eq, ours.tokens, plain.tokens))
        assert equal >= len(plain.tokens) * 9 // 10
    else:
        assert ours.answers == plain.answers
        assert ours.cached == plain.cached


@pytest.mark.parametrize(
    "level",
    [pytest.param(it, marks=() if it in {"off", "batched"} else pytest.mark.full) for it in LEVELS],
)
def test_the_same_image_hits_and_another_one_does_not(level: str) -> None:
    result = served(level)
    cached, answers = by_round(result.cached), by_round(result.tokens)
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
