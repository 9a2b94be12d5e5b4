"""Figures of ``/metrics``, read from where an engine serves them, and what changed between two."""

import io
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import socket
from typing import Any, Final, cast
from urllib.parse import urlsplit

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.terminal import plain


class GoneError(OSError):
    """No engine answers with its figures; the message says why."""


@dataclass(frozen=True)
class Sample:
    """One value of a metric, as it is shown: counters end in ``_total``."""

    name: str
    labels: Mapping[str, str]
    value: float


class Reading:
    """The figures of a server's ``/metrics`` at a time, in seconds of a monotonic clock.

    Attributes:
        at: the time.
        engines: labels of all engines of the server.
    """

    def __init__(self, at: float, samples: Iterable[Sample], engine: str | None = None) -> None:
        self.at = at
        self.engines: set[str] = set()
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        for shown in samples:
            labels = {name: plain(value) for name, value in shown.labels.items()}
            sample = Sample(shown.name, labels, shown.value)
            label = sample.labels.get("engine")
            if label is not None:
                self.engines.add(label)
            is_shown = engine is None or label in {None, engine}
            if is_shown and not math.isnan(sample.value):
                self._samples[sample.name].append(sample)

    def of(self, name: str, **labels: str) -> list[Sample]:
        """Return a metric's samples with these labels."""
        return [
            sample
            for sample in self._samples.get(name, ())
            if labels.items() <= sample.labels.items()
        ]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples; 0 if there are none."""
        return sum(sample.value for sample in self.of(name, **labels))

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the sums of a metric's samples by one of its labels."""
        sums: dict[str, float] = {}
        for sample in self.of(name, **labels):
            value = sample.labels.get(label, "")
            sums[value] = sums.get(value, 0.0) + sample.value
        return sums


@dataclass(frozen=True)
class Change:
    """Counters between two readings, each second; in all, while there is one reading only."""

    before: Reading | None
    now: Reading

    @property
    def unit(self) -> str:
        """The unit behind a figure."""
        return "" if self.before is None else "/s"

    def counted(self, name: str, **labels: str) -> float:
        """Return how much a counter grew; one that fell began again with the engine."""
        now = self.now.total(name, **labels)
        if self.before is None:
            return now
        before = self.before.total(name, **labels)
        grown = now - before if now >= before else now
        return grown / max(self.now.at - self.before.at, 1e-9)

    def by(self, label: str, name: str) -> dict[str, float]:
        """Return how much a counter grew, by one of its labels."""
        return {value: self.counted(name, **{label: value}) for value in self.now.by(label, name)}


def parse(text: str, at: float, engine: str | None = None) -> Reading:
    """Read Prometheus's text; of ``engine`` alone, if one is named. Samples without a number go.

    Raises:
        InvalidArgumentError: prometheus_client is missing.
        GoneError: it is no text of Prometheus.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415
    except ImportError:
        raise InvalidArgumentError(
            "figures of an engine need prometheus_client: pip install '.[top]' in the checkout"
        ) from None

    def samples() -> Iterator[Sample]:
        for family in text_string_to_metric_families(text):
            for found in family.samples:
                if math.isfinite(found.value):
                    yield Sample(found.name, found.labels, found.value)

    try:
        return Reading(at, samples(), engine)
    except (ValueError, IndexError, KeyError) as error:
        raise GoneError(f"its answer is no text of Prometheus: {error}") from None


MOST_BYTES: Final = 8 * 2**20
"""The most bytes of an answer; vLLM's are below 1 MiB."""
LIMIT_S: Final = 5.0
_OK: Final = 200

Clock = Callable[[], float]


def metrics_url(text: str) -> str:
    """Return where the figures of the engine at an address are: ``host:8000`` will do."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        HTTPConnection(parts.hostname or "", parts.port)  # raises for what is no host or no port
    except (ValueError, HTTPException):
        is_address = False
    if not is_address:
        raise InvalidArgumentError(f"{text!r} is no address; write for example localhost:8000")
    return url if parts.path.strip("/") else parts._replace(path="/metrics").geturl()


def fetch(url: str, limit_s: float = LIMIT_S, now: Clock = time.monotonic) -> str:
    """Return what an engine shows at a `metrics_url`; ``limit_s`` is for its whole answer.

    Raises:
        GoneError: it does not answer, or not with its figures.
    """
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(str(parts.hostname), parts.port, timeout=limit_s)
    connection.response_class = partial(_Answer, now() + limit_s, now)  # type: ignore[assignment]
    try:
        connection.request("GET", parts._replace(scheme="", netloc="", fragment="").geturl())
        answer = connection.getresponse()
        if answer.status != _OK:
            raise GoneError(f"it answers {answer.status} {answer.reason}")
        content = answer.read(MOST_BYTES + 1)
    except TimeoutError:
        raise GoneError(f"it does not answer, or not to the end, within {limit_s:g} s") from None
    except (OSError, HTTPException) as error:
        raise GoneError(getattr(error, "strerror", None) or str(error)) from None
    finally:
        connection.close()
    if len(content) > MOST_BYTES:
        raise GoneError(f"its answer is longer than {MOST_BYTES >> 20} MiB")
    return content.decode(errors="replace")


class _Answer(HTTPResponse):
    """An answer whose pieces all come before one time; a socket's limit is for each alone."""

    def __init__(
        self, ends: float, now: Clock, connected: socket, *more: Any, **options: Any
    ) -> None:
        super().__init__(connected, *more, **options)
        pieces = _Pieces(cast("Any", self.fp).detach(), connected, ends, now)
        self.fp = io.BufferedReader(pieces)


class _Pieces(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, connected: socket, ends: float, now: Clock) -> None:
        self._raw = raw
        self._connected = connected
        self._ends = ends
        self._now = now

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (left := self._ends - self._now()) <= 0:
            raise TimeoutError
        self._connected.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def read_engine(address: str, engine: str | None = None) -> Reading:
    """Return what an engine shows now; of all engines of the server without a label.

    Raises:
        InvalidArgumentError: prometheus_client is missing.
        GoneError: nothing answers there, or not with figures of that engine.
    """
    reading = parse(fetch(address), time.monotonic(), engine)
    if engine is not None and reading.engines and engine not in reading.engines:
        there = sorted(reading.engines, key=lambda label: (len(label), label))
        raise GoneError(f"no engine {engine}; engines: {', '.join(there)}")
    return reading
