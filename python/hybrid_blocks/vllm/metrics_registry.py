"""The registry of ``/metrics``: vLLM's own, with the figures of engines."""

from prometheus_client import CollectorRegistry
from vllm.v1.metrics import prometheus

from hybrid_blocks.vllm import metrics

vllm_get_prometheus_registry = prometheus.get_prometheus_registry


def get_prometheus_registry() -> CollectorRegistry:
    """Return what is shown. Where several servers share a port, vLLM gives each a registry."""
    registry = vllm_get_prometheus_registry()
    metrics.show_in(registry)
    return registry
