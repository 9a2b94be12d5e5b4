"""Fetches and parses the figures of an engine."""

import time

from hybrid_blocks.top.address import fetch
from hybrid_blocks.top.errors import GoneError
from hybrid_blocks.top.reading import Reading, parse

TIMEOUT_S = 5.0


def read_engine(address: str, engine: str | None = None) -> Reading:
    """Return what an engine shows now; of all engines of the server without a label.

    Raises:
        InvalidArgumentError: prometheus_client is missing.
        GoneError: nothing answers there, or not with figures of that engine.

    """
    reading = parse(fetch(address, TIMEOUT_S), time.monotonic(), engine)
    if engine is not None and reading.engines and engine not in reading.engines:
        there = sorted(reading.engines, key=lambda label: (len(label), label))
        raise GoneError(f"no engine {engine}; engines: {', '.join(there)}")
    return reading
