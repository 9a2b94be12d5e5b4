"""Samples of ``/metrics`` while a server works."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Thread

from server import Server

INTERVAL_S = 0.5
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Sample:
    """The gauges and counters of one moment; ``slabs`` by owner is empty without slabs.

    ``usage`` is the share of blocks or slabs in use, from 0 to 1.
    """

    at_s: float
    running: int
    waiting: int
    usage: float
    preemptions: int
    hit_tokens: int
    prompt_tokens: int
    generated_tokens: int
    slabs: dict[str, int] = field(default_factory=dict)


def take(server: Server, start: float) -> Sample:
    """Read ``/metrics`` once; ``start`` is when the clock stood at 0."""
    totals: dict[str, float] = {}
    slabs: dict[str, int] = {}
    for (name, labels), value in server.samples():
        totals[name] = totals.get(name, 0.0) + value
        if name == "hybrid_blocks_slabs":
            slabs[dict(_LABEL.findall(labels))["owner"]] = int(value)
    return Sample(
        at_s=time.monotonic() - start,
        running=int(totals["vllm:num_requests_running"]),
        waiting=int(totals["vllm:num_requests_waiting"]),
        usage=totals["vllm:kv_cache_usage_perc"],
        preemptions=int(totals["vllm:num_preemptions_total"]),
        hit_tokens=int(totals["vllm:prefix_cache_hits_total"]),
        prompt_tokens=int(totals["vllm:prefix_cache_queries_total"]),
        generated_tokens=int(totals["vllm:generation_tokens_total"]),
        slabs=slabs,
    )


class Watch:
    """Takes a sample every half second for the time of a ``with`` block, and shows each."""

    def __init__(self, server: Server, show: Callable[[Sample], None]) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._show = show
        self._is_over = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._take()

    def _run(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            self._take()

    def _take(self) -> None:
        sample = take(self._server, self._start)
        self.samples.append(sample)
        self._show(sample)
