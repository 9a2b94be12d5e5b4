"""The plugin's own figures on vLLM's ``/metrics``.

Engines and the server that answers ``/metrics`` are different processes. An engine inherits the
name of a folder through the environment and writes its figures to a file there, at most once a
second. The server reads the files at each request for ``/metrics``. Each figure has the labels of
vLLM's own.
"""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector as ClientsCollector
from prometheus_client.registry import Collector

from hybrid_blocks import variables
from hybrid_blocks.metrics import ENGINE, Sample

FOLDER_VARIABLE = variables.METRICS.name
_INTERVAL_S = 1.0


class Published(msgspec.Struct, frozen=True):
    """The content of a file: an engine's labels and its figures."""

    engine: dict[str, str]
    samples: list[Sample]


class Publisher:
    """Writes an engine's figures where the server finds them.

    ``engine`` are the labels that tell it from other engines, ``constant`` the figures that never
    change. The constant figures are written at once.
    """

    def __init__(self, engine: Mapping[str, str], constant: Sequence[Sample] = ()) -> None:
        folder = variables.METRICS.value()
        self._file = Path(folder, f"{os.getpid()}.json") if folder else None
        self._next = 0.0
        self._engine = dict(engine)
        self._constant = list(constant)
        self._write([])

    def publish(self, samples: Callable[[], list[Sample]], *, at_once: bool = False) -> None:
        """Write what ``samples`` returns, unless that was done less than a second ago.

        ``at_once`` writes it all the same: nothing may come after it for long.
        """
        now = time.monotonic()
        if self._file is None or (now < self._next and not at_once):
            return
        self._next = now + _INTERVAL_S
        self._write(samples())

    def _write(self, samples: list[Sample]) -> None:
        if self._file is None:
            return
        published = Published(self._engine, [*self._constant, *samples])
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(published))
            new.replace(self._file)
        except OSError:
            # The server took its folder away, or the disk is full: no reason to stop an engine.
            self._file = None


class EngineCollector(Collector):
    """Reads the figures of all engines that still run.

    Of two processes with the same labels, the figures of the later writer are shown.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> list[Metric]:
        """Return nothing: what engines report is known only when they have."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield one family a metric name."""
        engines = {tuple(sorted(one.engine.items())): one for one in published_in(self._folder)}
        families: dict[str, Metric] = {}
        for published in engines.values():
            for sample in published.samples:
                family = families.setdefault(
                    sample.family, Metric(sample.family, sample.documentation, sample.kind)
                )
                name = sample.family + ("_total" if sample.kind == "counter" else "")
                family.add_sample(name, {**published.engine, **sample.labels}, sample.value)
        yield from families.values()


def published_in(folder: Path, *, of: int | None = None) -> list[Published]:
    """Return what each process wrote that still runs, the newest last.

    ``of`` names a process: only itself and those that it started count.
    """
    found: list[tuple[int, Published]] = []
    for file in sorted(folder.glob("*.json")):
        parent = _parent(file.stem)
        if parent is None or (of is not None and str(of) not in (file.stem, parent)):
            continue
        try:
            published = msgspec.json.decode(file.read_bytes(), type=Published)
            found.append((file.stat().st_mtime_ns, published))
        except (OSError, msgspec.DecodeError):
            continue  # the engine ended meanwhile, or another release of this package wrote it
    return [published for _, published in sorted(found, key=itemgetter(0))]


def _parent(process: str) -> str | None:
    """Return the process that started another, ``None`` if that one does not run."""
    try:
        status = Path("/proc", process, "stat").read_text()
    except OSError:
        return None
    # Behind the name, which may hold brackets, stand the state and the parent.
    return status.rpartition(")")[2].split()[1]


@cache
def _collector(folder: str) -> EngineCollector:
    return EngineCollector(Path(folder))


def show_in(registry: CollectorRegistry) -> None:
    """Let a registry show what engines publish, if it does not yet."""
    if folder := variables.METRICS.value():
        registry.register(_collector(folder))


def register() -> None:
    """Let this process and its children share a folder, and show the figures in it.

    The process that makes the folder removes it when it ends.
    """
    if not variables.METRICS.value():
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


_FIGURES = {figure.family: figure for figure in ENGINE}


class Forwarder:
    """Sets gauges and counters to what the engines of this process publish in a folder.

    ``gauge`` and ``counter`` make a figure from a name, a documentation and names of labels, as
    Prometheus's classes do.
    """

    def __init__(
        self, folder: Path, gauge: Callable[..., Any], counter: Callable[..., Any]
    ) -> None:
        self._folder = folder
        self._classes = {"gauge": gauge, "counter": counter}
        self._made: dict[str, Any] = {}
        self._counted: dict[tuple[str, ...], float] = {}
        self._written = 0

    def forward(self) -> None:
        """Forward what engines have written since the last call."""
        # A file is replaced with each writing, which changes its folder.
        try:
            written = self._folder.stat().st_mtime_ns
        except OSError:
            return
        if written == self._written:
            return
        self._written = written
        for one in published_in(self._folder, of=os.getpid()):
            for sample in one.samples:
                if sample.family in _FIGURES:
                    self._set(sample.family, {**one.engine, **sample.labels}, sample.value)

    def _set(self, family: str, labels: dict[str, str], value: float) -> None:
        figure = _FIGURES[family]
        names = ["model_name", "engine", *figure.labels]
        if family not in self._made:
            self._made[family] = self._classes[figure.kind](
                name=family, documentation=figure.documentation, labelnames=names
            )
        values = [labels.get(name, "") for name in names]
        made = self._made[family].labels(*values)
        if figure.kind == "gauge":
            made.set(value)
            return
        before = self._counted.get((family, *values), 0)
        # An engine that counts less has started again.
        made.inc(value - before if value >= before else value)
        self._counted[family, *values] = value


class MultiProcessCollector(ClientsCollector):
    """Collects as the client does. The registry shows the figures of engines, too.

    vLLM makes one such registry, but its page comes from another: the library that serves
    ``/metrics`` makes a registry for each answer.
    """

    def __init__(self, registry: CollectorRegistry | None, path: str | None = None) -> None:
        super().__init__(registry, path)  # type: ignore[no-untyped-call]
        if registry is not None:
            show_in(registry)
