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
WHOLE = {"natural, whole": {"HYBRID_BLOCKS": "natural", "HYBRID_BLOCKS_FORWARD": "whole"}}
"""Chunks of prompts end at checkpoints."""

AMPLE_GIB = 400
"""Memory in which no request waits. Nothing of it is allocated."""
CARD, STEP, MEMORY = "NULL_CARD", "NULL_CARD_STEP", "NULL_CARD_GIB"
"""Variables: the card by the name that ``plan --gpu`` has for it; what a step takes; the cache."""

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
RATES = (80, 160, 320)
"""Requests that arrive in a second."""

Cell = dict[str, Any]
"""A step, and how many run, the rate at which they arrive, or a load and how many of it run."""


@dataclass(frozen=True)
class Group:
    """Engines of one model in one memory, a side each, that take turns."""

    part: str
    card: str
    model: str
    sides: dict[str, dict[str, str]]
    cells: tuple[Cell, ...]
    gib: float = AMPLE_GIB


def groups(running: tuple[int, ...]) -> Iterator[Group]:
    """Yield the groups of all parts."""
    hybrid, card = "Qwen3.5-35B-A3B", "H100-80GB"
    same = [{"step": step, "running": count} for step in STEPS for count in running]
    arriving = [{"step": STEPS[0], "rate": rate} for rate in RATES]
    yield Group("steps", card, hybrid, SIDES | WHOLE, (*same, *arriving))
    for model, row, on in (
        ("Qwen3.5-27B", "Qwen3.5-27B", card),
        (hybrid, hybrid, card),
        (hybrid, hybrid, "B200"),
        ("Nemotron-3-Nano-30B-A3B", "Nemotron-3-Nano-30B-A3B-NVFP4", "B200"),
        ("gpt-oss-20b", "gpt-oss-20b", "B200"),
    ):
        timed = tuple({"step": f"{row}/{on}/1", "running": count} for count in running)
        yield Group("clock", on, model, SIDES, timed)

    def of(*sides: str) -> dict[str, dict[str, str]]:
        return {side: SIDES[side] for side in sides}

    step = f"{hybrid}/{card}/1"
    tools = {"step": step, "load": "tools", "requests": 200, "at_once": 16}
    yield Group("load", card, hybrid, of("vLLM", "natural"), (tools,), gib=8.6)
    full = {"step": f"{hybrid}/B200/1", "running": running[-1]}
    yield Group("memory", "B200", hybrid, of("vLLM", "one call", "natural"), (full,), gib=24)
    constant = tuple(cell for cell in same if cell["step"] == STEPS[0])
    yield Group("server", card, hybrid, of("vLLM", "one call"), constant)
