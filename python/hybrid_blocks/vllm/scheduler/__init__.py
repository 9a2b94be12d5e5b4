"""vLLM's schedulers with one call into Rust; vLLM's own where a release lacks what that needs."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

from hybrid_blocks.vllm.log import logger


class Scheduler(VllmScheduler):
    """Stands for the scheduler that vLLM would choose."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Make vLLM's scheduler, or its asynchronous one where the engine is asynchronous."""
        is_async = vllm_config.scheduler_config.async_scheduling
        return (AsyncScheduler if is_async else VllmScheduler)(vllm_config, *args, **kwargs)


def explained(name: str, reason: str) -> type[VllmScheduler]:
    """Return what stands for this package's scheduler of that name, and log why it does."""
    logger.warning_once("hybrid_blocks: requests are scheduled by vLLM's own code: %s", reason)
    return Scheduler if name == "Scheduler" else AsyncScheduler
