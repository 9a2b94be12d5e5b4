"""The plugin's own figures on vLLM's ``/metrics``.

Engines and the server that answers ``/metrics`` are different processes. An engine writes its
figures to a file in a folder whose name it inherits through the environment, at most once a second;
the server reads the files when it is asked.
"""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

FOLDER_VARIABLE = "HYBRID_BLOCKS_METRICS"
_INTERVAL_S = 1.0
_FAMILIES: dict[str, type[CounterMetricFamily | GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


class Sample(msgspec.Struct, frozen=True):
    """One figure: a metric's name, what it says, what tells it from others of the name."""

    name: str
    documentation: str
    kind: Literal["counter", "gauge"]
    labels: dict[str, str]
    value: float


class Publisher:
    """Writes an engine's figures where the server finds them."""

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._file = Path(folder, f"{os.getpid()}.json") if folder else None
        self._next = 0.0

    def publish(self, samples: Callable[[], list[Sample]], *, at_once: bool = False) -> None:
        """Write what ``samples`` returns, unless that was done less than a second ago.

        ``at_once`` writes it all the same: nothing may come after it for long.
        """
        now = time.monotonic()
        if self._file is None or (now < self._next and not at_once):
            return
        self._next = now + _INTERVAL_S
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(samples()))
            new.replace(self._file)
        except OSError:
            # The server took its folder away, or the disk is full: no reason to stop an engine.
            self._file = None


class EngineCollector(Collector):
    """Reads the figures of all engines that still run; ``engine_pid`` tells them apart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> list[Metric]:
        """Return nothing: what engines report is known only when they have."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield one family a metric name."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for file in sorted(self._folder.glob("*.json")):
            if not Path("/proc", file.stem).exists():
                continue
            for sample in msgspec.json.decode(file.read_bytes(), type=list[Sample]):
                labels = {"engine_pid": file.stem, **sample.labels}
                family = families.get(sample.name)
                if family is None:
                    make = _FAMILIES[sample.kind]
                    family = make(sample.name, sample.documentation, labels=list(labels))
                    families[sample.name] = family
                family.add_metric(list(labels.values()), sample.value)
        yield from families.values()


@cache
def _collector(folder: str) -> EngineCollector:
    return EngineCollector(Path(folder))


def show_in(registry: CollectorRegistry) -> None:
    """Let a registry show what engines publish, if it does not yet."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        registry.register(_collector(folder))


def register() -> None:
    """Let this process and those it starts share a folder, and show what is in it.

    The process that makes the folder removes it when it ends.
    """
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = _new_folder()
    show_in(REGISTRY)


def _new_folder() -> str:
    folder = tempfile.mkdtemp(prefix="hybrid-blocks-")
    maker = os.getpid()

    def clean_up() -> None:
        if os.getpid() == maker:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(clean_up)
    return folder
