"""A real Prometheus scrapes what engines publish, and answers every query of the board.

``make test-dashboard`` runs this; ``PROMETHEUS`` names the program.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest
from board import ASKED, FOUND, OF_VLLM, WAITING, board
from grafana import VARIABLES, expressions
from hybrid_blocks import metrics as figures
from hybrid_blocks.metrics import OFFLOAD_COUNTERS, OFFLOAD_GAUGES, Figure, Sample
from hybrid_blocks.vllm.metrics import FOLDER_VARIABLE, EngineCollector, Publisher
from ports import HOST
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from scraper import answers, scraping

ENGINE = {"model_name": "hybrid", "engine": "0"}
CHOICES = {
    "owner": ("attention", "states", "free"),
    "pool": ("states",),
    "state": ("live", "cached"),
    "part": tuple(figures.PARTS),
    "place": figures.PLACES,
    "reason": figures.DROPS,
    "ended_by": figures.ENDS,
    "replay": ("natural", "vllm"),
}
"""Values of labels."""


def samples(figures_of: Iterable[Figure], count: int) -> Iterator[Sample]:
    """Yield a value of each figure with each choice of its labels: ``count``, or 9 of a gauge."""
    for figure in figures_of:
        for chosen in product(*(CHOICES[label] for label in figure.labels)):
            labels = dict(zip(figure.labels, chosen, strict=True))
            yield figure.sample(count if figure.kind == "counter" else 9, **labels)


class Engine(Collector):
    """An engine at level natural that does as much again between two scrapes."""

    def __init__(self, folder: Path) -> None:
        self._shown = EngineCollector(folder)
        info = figures.INFO.sample(1, version="0", vllm_version="0", level="natural", reason="")
        self._publisher = Publisher(ENGINE, [info])
        self._scrapes = 0

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        self._scrapes += 1
        self._publisher.publish(self._samples, at_once=True)
        yield from self._shown.collect()

    def _samples(self) -> list[Sample]:
        changing = (it for it in (*figures.ENGINE, *figures.SHADOW) if it != figures.INFO)
        return list(samples(changing, self._scrapes))


class Others(Collector):
    """vLLM's own figures and those of offload, as vLLM declares them."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        labels = list(ENGINE)
        counters = [*(one.family for one in OFFLOAD_COUNTERS.values())]
        counters += [name for name in OF_VLLM if name.endswith("_total")]
        gauges = [one.name for one in OFFLOAD_GAUGES.values()]
        gauges += [name for name in OF_VLLM if not name.endswith("_total")]
        self._counters = [Counter(one, one, labels, registry=registry) for one in counters]
        self._gauges = [Gauge(one, one, labels, registry=registry) for one in gauges]
        self._registry = registry

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for counter in self._counters:
            counter.labels(**ENGINE).inc()
        for gauge in self._gauges:
            gauge.labels(**ENGINE).set(3)
        yield from self._registry.collect()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes an engine every second."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "engines").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder / "engines"))
        registry = CollectorRegistry()
        registry.register(Engine(folder / "engines"))
        registry.register(Others())
        server, thread = start_http_server(0, HOST, registry)
        try:
            with scraping(f"{HOST}:{server.server_port}", folder) as address:
                yield address
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.mark.parametrize("query", list(expressions(board())))
def test_no_query_is_empty(prometheus: str, query: str) -> None:
    found = answers(prometheus, query)
    assert found, query
    assert not any("NaN" in str(series["value"]) for series in found)


def test_the_values_are_those_of_the_engine(prometheus: str) -> None:
    slabs = answers(prometheus, f"sum by (owner) ({figures.SLABS.name})")
    by_owner = {one["metric"]["owner"]: one["value"][1] for one in slabs}
    assert by_owner == dict.fromkeys(("attention", "states", "free"), "9")
    assert answers(prometheus, WAITING)[0]["value"][1] == "3"
    (share,) = answers(prometheus, f"rate({FOUND}[1m]) / rate({ASKED}[1m])")
    assert float(share["value"][1]) == pytest.approx(1)


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_of_the_board_has_a_choice(prometheus: str, name: str) -> None:
    (info,) = answers(prometheus, figures.INFO.name)
    assert info["metric"][name]
