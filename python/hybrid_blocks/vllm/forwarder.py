"""Shows what engines publish by gauges and counters of another kind than Prometheus's own."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybrid_blocks.metrics.engine import ENGINE
from hybrid_blocks.vllm.metrics import published_in

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
