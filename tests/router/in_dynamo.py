"""Dynamo's own decoder and index read the events of level ``natural``: what they promise.

``make test-router`` builds the program around Dynamo's crate and runs these tests.
"""

import runpy
import struct
import subprocess
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import Load, Prompt, Published, natural, published

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "target/router/debug/hybrid-blocks-router-test"
NOT_ATTENTION = {"non_main_attention_kind", "non_main_attention_group"}


@dataclass
class Answers:
    """Tokens that Dynamo credits to the engine for each prompt, and events it did not take."""

    num_promised: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def ask_dynamo(life: Published) -> Answers:
    """Give the batches and prompts of a life to Dynamo, in their order."""
    answers = Answers()
    command, given = [str(PROGRAM), str(life.block_size)], b"".join(_records(life))
    told = subprocess.run(command, check=False, input=given, capture_output=True)
    assert told.returncode == 0, told.stderr.decode()
    for line in told.stdout.decode().splitlines():
        name, count = line.rsplit(" ", 1)
        if name == "overlap":
            answers.num_promised.append(int(count) * life.block_size)
        else:
            answers.refused[name] = int(count)
    assert answers.num_promised.pop() == 0, "of a prompt after a reset"
    assert len(answers.num_promised) == len(life.prompts)
    return answers


def _records(life: Published) -> Iterator[bytes]:
    num_read = 0
    after_reset = replace(life.prompts[-1], num_batches=len(life.batches))
    for prompt in (*life.prompts, after_reset):
        for batch in life.batches[num_read : prompt.num_batches]:
            yield b"B" + struct.pack("<I", len(batch)) + batch
        num_read = prompt.num_batches
        tokens = array("I", prompt.tokens).tobytes()
        yield b"P" + struct.pack("<I", len(tokens)) + tokens


def counts_of_the_example(life: Published) -> list[int]:
    """Return the tokens that the router of the examples counts for each prompt."""
    replica: Any = runpy.run_path(str(ROOT / "examples/router.py"))["Replica"]()
    counts, num_read = [], 0
    for prompt in life.prompts:
        for batch in life.batches[num_read : prompt.num_batches]:
            replica.read(batch)
        num_read = prompt.num_batches
        counts.append(replica.count(prompt.tokens) * life.block_size)
    return counts


@dataclass(frozen=True)
class Figures:
    """How many prompts Dynamo promised as much as the engine found, more, and less."""

    num_prompts: int
    num_equal: int
    num_above: int
    num_below: int
    share_excess: float
    """Tokens promised and not found, of those found."""

    @property
    def share_equal(self) -> float:
        return self.num_equal / self.num_prompts


def compare(life: Published, answers: Answers, *, only_next: bool = False) -> Figures:
    """Compare promises with findings, of all prompts or those that follow one of their session."""
    both = zip(answers.num_promised, life.prompts, strict=True)
    pairs = [(promised, it.num_found) for promised, it in both if it.is_next or not only_next]
    signs = Counter((promised > found) - (promised < found) for promised, found in pairs)
    excess = sum(max(0, promised - found) for promised, found in pairs)
    share = round(excess / sum(found for _, found in pairs), 3)
    return Figures(len(pairs), signs[0], signs[1], signs[-1], share)


STATES, WINDOWS = "Qwen3.5-27B", "gpt-oss-20b"
LOADS = {
    "states, sessions": Load(STATES, 8, "conversations", 300),
    "states, agents": Load(STATES, 12, "agents", 200),
    "windows, sessions": Load(WINDOWS, 2, "conversations", 300),
    "windows, agents": Load(WINDOWS, 3, "agents", 200),
}


@cache
def lived(name: str, mode: str) -> tuple[Published, Answers]:
    with pytest.MonkeyPatch.context() as patched, natural(patched, mode):
        life = published(LOADS[name])
    return life, ask_dynamo(life)


@pytest.mark.parametrize("name", LOADS)
def test_dynamo_takes_every_usable_event_of_attention(name: str) -> None:
    life, answers = lived(name, "usable")
    assert answers.refused.keys() == NOT_ATTENTION
    assert answers.num_promised == counts_of_the_example(life)


@pytest.mark.parametrize("name", LOADS)
def test_usable_events_promise_nearly_what_the_engine_finds(name: str) -> None:
    figures = {}
    for mode in ("all", "usable"):
        life, answers = lived(name, mode)
        figures[mode] = compare(life, answers)
        print(f"{name}, {mode}: {figures[mode]}; next {compare(life, answers, only_next=True)}")
    usable, plain = figures["usable"], figures["all"]
    assert usable.share_equal > max(plain.share_equal, 0.8)
    assert usable.num_below <= 4, "hits in the step that computes the tokens"


def common(one: Prompt, other: Prompt) -> int:
    size = min(len(one.tokens), len(other.tokens))
    differ = np.flatnonzero(np.array(one.tokens[:size]) != np.array(other.tokens[:size]))
    return int(differ[0]) if len(differ) else size


def cause(prompt: Prompt, promised: int, earlier: Sequence[Prompt], block_size: int) -> str:
    """Say which checkpoint is missing where a prompt leaves all earlier ones."""
    start = prompt.tokens[:promised]
    before = [one for one in earlier if one.tokens[:promised] == start]
    if len({tuple(one.tokens[promised : promised + block_size]) for one in before}) == 1:
        return "first to leave"
    found = any(one.num_found == promised for one in before)
    return "evicted after use" if found else "none lasted"


@pytest.mark.parametrize("name", LOADS)
def test_too_much_is_promised_only_where_a_prompt_leaves_an_earlier_one(name: str) -> None:
    """No event says that a hit ends at a checkpoint, before the block at which prompts part.

    Dynamo's index credits each part of a stored chain, and an event cannot ask for the whole. A
    place that misled before leads more prompts to a checkpoint after it, so it stays published.
    """
    life, answers = lived(name, "usable")
    causes = Counter[str]()
    for number, (promised, prompt) in enumerate(
        zip(answers.num_promised, life.prompts, strict=True)
    ):
        if promised > prompt.num_found:
            earlier = life.prompts[:number]
            parted = [common(prompt, one) - promised for one in earlier]
            assert any(0 <= beyond < life.block_size for beyond in parted)
            causes[cause(prompt, promised, earlier, life.block_size)] += 1
    print(f"{name}: {dict(causes)}")


@pytest.mark.parametrize("name", LOADS)
def test_plain_events_name_blocks_whose_parents_dynamo_has_dropped(name: str) -> None:
    _, answers = lived(name, "all")
    assert answers.refused["ParentBlockNotFound"] > 0
    assert answers.refused["BlockNotFound"] > 0
