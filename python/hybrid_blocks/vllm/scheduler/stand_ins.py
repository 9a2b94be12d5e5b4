"""Stand-ins for objects of vLLM while its code sees only the rest of a step."""

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput


class Running(list[Any]):
    """Running requests by index from the first that is left.

    To iterate over them shows all, and it is false only where none runs.
    """

    def __init__(self, ahead: list[Any], rest: list[Any]) -> None:
        super().__init__(rest)
        self._ahead = ahead

    def all(self) -> list[Any]:
        """Return those that are dealt with and the rest."""
        return list(self)

    def __getitem__(self, index: Any) -> Any:
        """Return one of the rest; vLLM before 0.32 asks for the first of all if none is left."""
        return super().__getitem__(index) if len(self) else self._ahead[index]

    def __bool__(self) -> bool:
        """Return whether any runs, one that is dealt with or another."""
        return bool(self._ahead) or len(self) > 0

    def __iter__(self) -> Any:
        """Return first those that are dealt with, then the rest."""
        yield from self._ahead
        yield from super().__iter__()


class Measured:
    """Stands for vLLM's ``ModelMetrics`` while only the rest of a step is shown to its code."""

    def __init__(self, metrics: Any, scheduled: SchedulerOutput) -> None:
        self._metrics = metrics
        self._scheduled = scheduled

    def is_enabled(self) -> bool:
        """Return whether anything is counted."""
        return bool(self._metrics.is_enabled())

    def get_step_perf_stats_per_gpu(self, _rest: SchedulerOutput) -> Any:
        """Return what the whole step took."""
        return self._metrics.get_step_perf_stats_per_gpu(self._scheduled)


class Budget:
    """Stands for vLLM's ``SchedulerConfig`` with the tokens that a batch leaves."""

    def __init__(self, scheduler: Any, num_taken: int) -> None:
        self._config = config = scheduler.scheduler_config
        self.max_num_batched_tokens = config.max_num_batched_tokens - num_taken
        self.long_prefill_token_threshold = config.long_prefill_token_threshold
        if self.long_prefill_token_threshold and scheduler.adaptive_long_prefill_threshold:
            share = config.max_num_batched_tokens // sum(scheduler.get_request_counts())
            self.long_prefill_token_threshold = max(self.long_prefill_token_threshold, share)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class EncoderConnector:
    """Stands for vLLM's connector for outputs of the encoder, which looks at whole steps."""

    def __init__(self, connector: Any, join: Callable[[SchedulerOutput], None]) -> None:
        self._connector = connector
        self._join = join

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Any:
        """Return the metadata for workers."""
        self._join(scheduler_output)
        return self._connector.build_connector_meta(scheduler_output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)
