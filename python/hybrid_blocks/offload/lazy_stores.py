"""Stores when requests pause, not when they compute."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import TransferJob
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class LazyScheduler(OffloadingConnectorScheduler):
    """vLLM's scheduler side, which offers a request's chunks when it ends or loses its blocks.

    A running request holds its blocks, so waiting loses only blocks that leave a window. vLLM hands
    states over only once, so these are stored as they come.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Tokens that running requests have once the last step that was scheduled has run.
        self._num_reached: dict[str, int] = {}

    def _build_store_jobs(self, scheduler_output: "SchedulerOutput") -> dict[int, TransferJob]:
        paused = {
            req_id: self._num_computed(req_id)
            for req_id in scheduler_output.preempted_req_ids or ()
            if req_id in self._req_status
        }
        pausing = replace(scheduler_output, num_scheduled_tokens=paused)
        jobs = super()._build_store_jobs(pausing)
        # Their blocks may be written to in this very step, so copies end before it.
        self._current_batch_jobs_to_flush.update(
            job_id for job_id, job in jobs.items() if job.req_id in paused
        )
        for req_id in scheduler_output.finished_req_ids or ():
            self._num_reached.pop(req_id, None)
        for req_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            if (status := self._req_status.get(req_id)) is not None:
                self._num_reached[req_id] = status.req.num_computed_tokens + num_tokens
                self._pass_by(status, self._num_reached[req_id])
        return jobs

    def _num_computed(self, req_id: str) -> int:
        """Tokens of a preempted request that its blocks hold: vLLM counts from 0 again by now."""
        # The last token has no computed state yet, and neither have refused drafts.
        most = self._req_status[req_id].req.num_tokens - 1
        return min(self._num_reached.pop(req_id, 0), most)

    def _pass_by(self, status: Any, num_tokens: int) -> None:
        """Give up chunks that a request's windows have left: vLLM looks at all that are not."""
        for group in self._sliding_window_groups:
            config, state = self.config.kv_group_configs[group], status.group_states[group]
            window = config.load_window_size_in_chunks(num_tokens) or 0
            first = num_tokens // config.tokens_per_chunk - window - 1
            state.next_stored_chunk_idx = max(state.next_stored_chunk_idx, first)
