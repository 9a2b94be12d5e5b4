"""vLLM's second model runner ends the stores of ended requests before it clears their blocks.

It zeroes and copies blocks in `update_requests`, and calls the connector afterwards. A block of a
request that ended can then be zeroed before its store has read it: zeros under a valid digest.
vLLM's first model runner calls the connector first.
"""

import functools
import sys
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

MODULE = "vllm.v1.worker.gpu.model_runner"


def end_stores_first() -> None:
    """Let the second model runner call the connector first, if this process runs it."""
    if (module := sys.modules.get(MODULE)) is None:
        return
    runner, update_requests = module.GPUModelRunner, module.GPUModelRunner.update_requests
    if hasattr(update_requests, "__wrapped__"):
        return

    @functools.wraps(update_requests)
    def ends_stores_first(self: Any, scheduler_output: "SchedulerOutput") -> None:
        if (metadata := scheduler_output.kv_connector_metadata) is not None:
            # The runner calls this once more before the forward pass and finds nothing left to do.
            get_kv_transfer_group().handle_preemptions(metadata)
        update_requests(self, scheduler_output)

    runner.update_requests = ends_stores_first
