"""One day in a server's life, and what is left of it to compare."""

import asyncio
import time
from dataclasses import dataclass

from server import Server
from traffic import PREFIX, Answer, complete_in_turn, complete_together, hang_up

QUESTIONS = [f"{PREFIX} Question {number}: what is block {number * 7}?" for number in range(6)]
STORIES = [f"Story {number}. " + PREFIX[number : number + 200] for number in range(24)]
CROWD = [f"{PREFIX[n % 50 : n % 50 + 40]} {n * 37 % 1000:03}" for n in range(200)]

PROMPTS = {"first": QUESTIONS, "second": QUESTIONS, "crowd": CROWD, "pressed": STORIES}
"""Prompts behind each list of answers in a `Record`."""

TOGETHER = {"pressed", "crowd"}
"""Lists whose prompts arrive at once, while the engine is paused. The others arrive in turn."""


def arrival(patience_s: float = 3_600.0) -> list[float]:
    """Return when each prompt arrives, in seconds, if all before it end within some time."""
    times: list[float] = []
    now = 0.0
    for phase, prompts in PROMPTS.items():
        for number in range(len(prompts)):
            if number == 0 or phase not in TOGETHER:
                now += patience_s
            times.append(now)
    return times


@dataclass(frozen=True, kw_only=True)
class Record:
    """Answers and counts of a server.

    ``first`` and ``second`` are two passes over prompts that share a prefix. ``crowd`` comes from
    200 streams at once, ``pressed`` from more requests than the cache holds at a time.
    """

    first: list[Answer]
    second: list[Answer]
    crowd: list[Answer]
    pressed: list[Answer]
    preemptions: float
    usage_after_hang_ups: float
    metrics: dict[str, float]
    info: str
    """Labels of ``hybrid_blocks_info``; nothing without the plugin."""
    log: str


def live_through(server: Server) -> Record:
    """Send all of the scenario's traffic to ``server``."""
    first = asyncio.run(complete_in_turn(server, QUESTIONS, max_tokens=16))
    second = asyncio.run(complete_in_turn(server, QUESTIONS, max_tokens=16))
    crowd = asyncio.run(complete_together(server, CROWD, max_tokens=6))
    pressed = asyncio.run(complete_together(server, STORIES, max_tokens=300))
    preemptions = server.metrics()["vllm:num_preemptions_total"]
    asyncio.run(hang_up(server, STORIES[:12], after=3))
    usage = _usage_when_idle(server)
    info = "".join(it for (name, it), _ in server.samples() if name == "hybrid_blocks_info")
    return Record(
        first=first,
        second=second,
        crowd=crowd,
        pressed=pressed,
        preemptions=preemptions,
        usage_after_hang_ups=usage,
        metrics=server.metrics(),
        info=info,
        log=server.log_text(),
    )


def _usage_when_idle(server: Server, patience_s: float = 60.0) -> float:
    """Return the share of blocks in use once no request runs, or when patience ends."""
    deadline = time.monotonic() + patience_s
    while True:
        metrics = server.metrics()
        requests = metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]
        usage = metrics["vllm:kv_cache_usage_perc"]
        if (requests == 0 and usage == 0) or time.monotonic() > deadline:
            return usage
        time.sleep(0.5)
