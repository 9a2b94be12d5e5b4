"""vLLM's logger of figures, which shows the plugin's where ``/metrics`` does not.

``RayPrometheusStatLogger`` derives from it. It sends vLLM's figures to Ray, which has a page of
metrics of its own. The engine is a process that knows no Ray, so the logger reads its files.
"""

from pathlib import Path
from typing import Any

from prometheus_client import Gauge
from vllm.v1.metrics.loggers import PrometheusStatLogger as VllmPrometheusStatLogger

from hybrid_blocks import variables
from hybrid_blocks.vllm.forwarder import Forwarder


class PrometheusStatLogger(VllmPrometheusStatLogger):
    """Logs as vLLM does. Where figures are not Prometheus's own, the plugin's follow them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        folder = variables.METRICS.value()
        self._hybrid_blocks: Forwarder | None = None
        gauge, counter = getattr(self, "_gauge_cls", Gauge), getattr(self, "_counter_cls", None)
        if folder and gauge is not Gauge and counter is not None:
            self._hybrid_blocks = Forwarder(Path(folder), gauge, counter)

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Log the figures of a step."""
        super().record(*args, **kwargs)
        if self._hybrid_blocks is not None:
            self._hybrid_blocks.forward()
