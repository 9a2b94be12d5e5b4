"""Figures of ``/metrics``, read from where an engine serves them."""

import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.top.errors import GoneError
from hybrid_blocks.top.reading import Reading, parse

MOST_BYTES = 64 * 2**20
"""Of an answer; vLLM's are below 1 MiB."""


def metrics_url(text: str) -> str:
    """Return where the figures of the engine at an address are: ``host:8000`` will do.

    Raises:
        InvalidArgumentError: it is no address of HTTP.

    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        parts.port  # noqa: B018 - raises for a port that is none
    except ValueError:
        is_address = False
    if not is_address:
        raise InvalidArgumentError(f"{text!r} is no address; write for example localhost:8000")
    return url if parts.path.strip("/") else parts._replace(path="/metrics").geturl()


def fetch(url: str, timeout_s: float) -> str:
    """Return what an engine shows.

    Raises:
        GoneError: it does not answer, or not with its figures.

    """
    try:
        with urlopen(url, timeout=timeout_s) as answer:
            content: bytes = answer.read(MOST_BYTES)
    except HTTPError as error:
        error.close()
        raise GoneError(f"it answers {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise GoneError(getattr(reason, "strerror", None) or str(reason)) from None
    return content.decode(errors="replace")


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
