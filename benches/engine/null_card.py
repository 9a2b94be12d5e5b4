"""A process of vLLM on a null card: the H100 of the tests, with a worker that computes nothing."""

from contextlib import ExitStack
from typing import Any

import absent_operators  # noqa: F401 - before vLLM
import fake_gpu

_posed = ExitStack()


class NullCard(fake_gpu.Card):
    """Answers as a card would; its worker only takes the time of a step."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Name the worker where vLLM would name its own."""
        vllm_config.parallel_config.worker_cls = "null_worker.NullWorker"
        super().check_and_update_config(vllm_config)


def pose() -> None:
    """Make this process's vLLM see the card, for as long as it lives."""
    fake_gpu.pose(platform=NullCard)
    from registry_oracle import inspect_in_this_process  # noqa: PLC0415 - imports models

    inspect_in_this_process()
    _posed.enter_context(fake_gpu.no_device())
