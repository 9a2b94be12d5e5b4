"""The figures of several servers of one port, as Prometheus's client collects them."""

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector as ClientsCollector

from hybrid_blocks.vllm import metrics


class MultiProcessCollector(ClientsCollector):
    """Collects as the client does. Its registry shows the figures of engines, too.

    vLLM makes one such registry, but its page comes from another: the library that serves
    ``/metrics`` makes a registry for each answer.
    """

    def __init__(self, registry: CollectorRegistry | None, path: str | None = None) -> None:
        super().__init__(registry, path)  # type: ignore[no-untyped-call]
        if registry is not None:
            metrics.show_in(registry)
