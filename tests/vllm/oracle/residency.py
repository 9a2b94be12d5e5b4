"""vLLM's collector of residency metrics, which samples every block here and notes its calls."""

from typing import Any

from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.metrics.stats import KVCacheEvictionEvent


class Collector(KVCacheMetricsCollector):
    """Keep calls and events; 0.32 also reports accesses of its null block, which change nothing."""

    def __init__(self, _sample_rate: float = 1.0) -> None:
        super().__init__(sample_rate=1.0)
        self.calls: list[tuple[str, int]] = []

    def on_block_allocated(self, block: Any) -> None:
        self.calls.append(("allocated", block.block_id))
        super().on_block_allocated(block)

    def on_block_accessed(self, block: Any) -> None:
        if not block.is_null:
            self.calls.append(("accessed", block.block_id))
        super().on_block_accessed(block)

    def on_block_evicted(self, block: Any) -> None:
        self.calls.append(("evicted", block.block_id))
        super().on_block_evicted(block)

    def reset(self) -> None:
        self.calls.append(("reset", 0))
        super().reset()

    @property
    def events(self) -> list[KVCacheEvictionEvent]:
        return self._eviction_events

    def drain_events(self) -> list[KVCacheEvictionEvent]:
        """Events without times, which differ between two schedulers."""
        return [
            KVCacheEvictionEvent(0, 0, (0,) * len(event.reuse_gaps_seconds))
            for event in super().drain_events()
        ]
