"""Figures of several connectors: their own, and what was chosen among them."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorStats

from hybrid_blocks.metrics import SEVERAL_COUNTERS, SEVERAL_GAUGES
from hybrid_blocks.offload.multi.child import Child

CHOICE: Final = "choice"
"""The key of what was chosen; those of connectors are a place, a module and a class."""


class ChoiceStats(KVConnectorStats):
    """Counts by connector, and rates as they are now."""

    @classmethod
    def of(cls, children: Iterable[Child]) -> "ChoiceStats":
        """Take the counts since the last call."""
        data: dict[str, dict[str, float]] = {}
        for child in children:
            if child.counts:
                rate = child.rate
                data[child.label] = {
                    **child.counts,
                    "bytes_per_second": rate.bytes_per_second,
                    "latency_seconds": rate.latency,
                }
                child.counts.clear()
        return cls(data)

    def reset(self) -> None:
        """Forget all figures."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add later counts, and take later rates."""
        for label, figures in other.data.items():
            own = self.data.setdefault(label, {})
            for name, value in figures.items():
                own[name] = value if name in SEVERAL_GAUGES else own.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, Any]:
        """Return the figures for a line of the log."""
        return self.data

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data


def key_of(child: Child) -> str:
    """Return the key of a connector's figures; it tells a process without it how to read them."""
    cls = type(child.connector)
    return f"{child.place}:{cls.__module__}:{cls.__qualname__}"


def read(data: dict[str, Any]) -> MultiKVConnectorStats:
    """Make figures of what another process sent, each by the class that made them."""
    found: dict[str, KVConnectorStats] = {}
    for key, figures in data.items():
        if isinstance(figures, KVConnectorStats):
            found[key] = figures
        elif key == CHOICE:
            found[key] = ChoiceStats({label: dict(counts) for label, counts in figures.items()})
        elif (stats := _class_of(key).build_kv_connector_stats(data=figures)) is not None:
            found[key] = stats
    return MultiKVConnectorStats(data=found)


def _class_of(key: str) -> Any:
    _, module, name = key.split(":")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class SeveralPromMetrics(KVConnectorPromMetrics):
    """Hands each connector's figures to its own metrics; what was chosen has a label each."""

    def __init__(
        self, children: dict[int, KVConnectorPromMetrics], *arguments: Any, **options: Any
    ) -> None:
        """Declare the metrics of the choice; ``children`` are those of connectors by place."""
        super().__init__(*arguments, **options)
        self._children = children
        labels = [*self._labelnames, "connector"]
        kinds: Any = (self._counter_cls, SEVERAL_COUNTERS), (self._gauge_cls, SEVERAL_GAUGES)
        self._metrics = {
            name: declare(name=figure.family, documentation=figure.documentation, labelnames=labels)
            for declare, figures in kinds
            for name, figure in figures.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take in what one engine sent."""
        for key, figures in transfer_stats_data.items():
            if key == CHOICE:
                self._observe_choice(figures, engine_idx)
            elif (child := self._children.get(int(key.partition(":")[0]))) is not None:
                child.observe(figures, engine_idx)

    def _observe_choice(self, figures: dict[str, dict[str, float]], engine: int) -> None:
        for label, values in figures.items():
            for name, value in values.items():
                metric: Any = self._metrics[name].labels(
                    *self.per_engine_labelvalues[engine], label
                )
                if name in SEVERAL_GAUGES:
                    metric.set(value)
                else:
                    metric.inc(value)
