"""``Reading``: the figures of one moment, and ``Change``: those between two."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.terminal import plain
from hybrid_blocks.tools.top.errors import GoneError


@dataclass(frozen=True)
class Sample:
    """One value of a metric, as it is shown: counters end in ``_total``."""

    name: str
    labels: Mapping[str, str]
    value: float


class Reading:
    """What a server's ``/metrics`` said at a time, in seconds of a clock that never goes back.

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
        """What stands behind a figure."""
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
    """Read Prometheus's text; of ``engine`` alone, if one is named.

    Raises:
        InvalidArgumentError: prometheus_client is missing.
        GoneError: it is no text of Prometheus.

    """
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415
    except ImportError:
        raise InvalidArgumentError(
            "figures of an engine need prometheus_client: pip install 'hybrid-blocks[top]'"
        ) from None

    def samples() -> Iterator[Sample]:
        for family in text_string_to_metric_families(text):
            for found in family.samples:
                yield Sample(found.name, found.labels, found.value)

    try:
        return Reading(at, samples(), engine)
    except (ValueError, IndexError, KeyError) as error:
        raise GoneError(f"its answer is no text of Prometheus: {error}") from None
