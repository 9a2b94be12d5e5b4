"""The models, cards, steps and loads of `make bench-engine`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SIDES = {
    "vLLM": {"HYBRID_BLOCKS": "off"},
    "one by one": {"HYBRID_BLOCKS": "manager", "HYBRID_BLOCKS_SCHEDULER": "off"},
    "one call": {"HYBRID_BLOCKS": "manager"},
    "natural": {"HYBRID_BLOCKS": "natural"},
}
WHOLE = {"natural, whole": SIDES["natural"] | {"HYBRID_BLOCKS_FORWARD": "whole"}}
"""Chunks of prompts end at checkpoints that save more than a step."""
UNPRICED = {
    "natural, whole, each checkpoint": WHOLE["natural, whole"]
    | {"HYBRID_BLOCKS_CHECKPOINTS": "learned/step_tokens=1"}
}
"""The same for all checkpoints."""

AMPLE_GIB = 400
"""Memory in which no request waits. Nothing of it is allocated."""
STEP, MEMORY = "NULL_CARD_STEP", "NULL_CARD_GIB"
"""Variables: what a step takes, and the size of the cache."""

PROMPT_TOKENS = 128
OUTPUT_TOKENS = (150, 250)
"""The fewest and the most of a request."""
STEP_TOKENS = 8192
MOST_RUNNING = 1024
LONGEST = 16_384
"""Limits of the engine: tokens of a step, requests at once, and tokens of a request."""
RUNNING = (64, 256, 512, 1024)
STEPS = ("8", "15", "30")
"""Milliseconds of a step."""
RATES = (80, 160)
"""Requests that arrive in a second."""
CLOCKED = (
    ("Nemotron-3-Nano-30B-A3B", "Nemotron-3-Nano-30B-A3B-NVFP4/B200/1", RATES),
    ("gpt-oss-20b", "gpt-oss-20b/B200/1", RATES),
    ("Qwen3.5-35B-A3B", "Qwen3.5-35B-A3B/B200/1", (40, 80)),
    ("Qwen3.5-35B-A3B", "Qwen3.5-35B-A3B/H100-80GB/1", (20, 40)),
    ("Qwen3.5-27B", "Qwen3.5-27B/H100-80GB/1", (10, 20)),
    ("Granite-4.0-H-Tiny", "Granite-4.0-H-Tiny/H100-80GB/1", (40, 80)),
)
"""Models, the clocks of their steps, and requests that arrive in a second."""

Cell = dict[str, Any]
"""A step, and how many run, the rate at which they arrive, or a load and how many of it run."""


@dataclass(frozen=True)
class Group:
    """Engines of one model in one memory, a side each, that take turns."""

    part: str
    model: str
    sides: dict[str, dict[str, str]]
    cells: tuple[Cell, ...]
    gib: float = AMPLE_GIB


def groups(running: tuple[int, ...]) -> Iterator[Group]:
    """Yield the groups of all parts."""
    hybrid = "Qwen3.5-35B-A3B"

    def of(*sides: str) -> dict[str, dict[str, str]]:
        return {side: SIDES[side] for side in sides}

    def timed(*rows: str) -> tuple[Cell, ...]:
        return tuple({"step": row, "running": count} for row in rows for count in running)

    def arriving(step: str, rates: tuple[int, ...]) -> tuple[Cell, ...]:
        return tuple({"step": step, "rate": rate} for rate in rates)

    yield Group("steps", hybrid, SIDES | WHOLE, (*timed(*STEPS), *arriving(STEPS[0], RATES)))
    for model in dict.fromkeys(model for model, *_ in CLOCKED):
        rows = [(step, rates) for name, step, rates in CLOCKED if name == model]
        cells = (cell for step, rates in rows for cell in (*timed(step), *arriving(step, rates)))
        yield Group("clock", model, SIDES, tuple(cells))
    few = tuple({"step": step, "running": RUNNING[0]} for step in STEPS)
    yield Group("checkpoint", hybrid, UNPRICED, few)
    tools = {"step": f"{hybrid}/H100-80GB/1", "load": "tools", "requests": 200, "at_once": 16}
    chats = {"step": f"{hybrid}/H100-80GB/1", "load": "conversations", "requests": 100}
    yield Group("load", hybrid, of("vLLM", "natural"), (tools, chats), gib=8.6)
    yield Group("load", hybrid, of("vLLM", "natural"), (chats,), gib=1.2)
    yield Group("server", hybrid, of("vLLM", "one call"), timed(STEPS[0]))
