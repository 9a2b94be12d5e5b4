"""vLLM's logger of figures, and the labels that tell an engine's figures from another's."""

from pathlib import Path
from typing import Any

from prometheus_client import Gauge
from vllm.v1.core import kv_cache_utils
from vllm.v1.metrics.loggers import PrometheusStatLogger as VllmPrometheusStatLogger

from hybrid_blocks import variables
from hybrid_blocks.vllm.metrics import Forwarder


class PrometheusStatLogger(VllmPrometheusStatLogger):
    """Logs as vLLM does, and adds the plugin's figures for another library than Prometheus's."""

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


vllm_resolve_kv_cache_block_sizes = getattr(kv_cache_utils, "resolve_kv_cache_block_sizes", None)

_SEEN: dict[str, str] = {}


def resolve_kv_cache_block_sizes(*args: Any, **kwargs: Any) -> Any:
    """Resolve as vLLM does, and take note of whose sizes they are."""
    note(kwargs.get("vllm_config", args[-1] if args else None))
    return vllm_resolve_kv_cache_block_sizes(*args, **kwargs)  # type: ignore[misc]


def note(vllm_config: Any) -> None:
    """Take note of the engine that this process makes next."""
    model = getattr(vllm_config, "model_config", None)
    parallel = getattr(vllm_config, "parallel_config", None)
    _SEEN["model_name"] = str(getattr(model, "served_model_name", ""))
    _SEEN["engine"] = str(getattr(parallel, "data_parallel_index", 0))


def engine_labels() -> dict[str, str]:
    """Return the labels of the engine that this process made last."""
    return {"model_name": "", "engine": "0", **_SEEN}


def replacements() -> tuple[tuple[Any, Any], ...]:
    """Return what stands for vLLM's function, if the installed vLLM has it."""
    if vllm_resolve_kv_cache_block_sizes is None:
        return ()
    return ((vllm_resolve_kv_cache_block_sizes, resolve_kv_cache_block_sizes),)
