"""vLLM's schedulers with one call into Rust for all running requests that decode.

``--scheduler-cls hybrid_blocks.vllm.Scheduler``. A step is vLLM's own but for a stretch at its
beginning: the running requests, in their order, up to the first that does anything but decode one
token. What follows it, admission included, is left to vLLM's code, which is given the rest of
the running requests and of the token budget.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from itertools import islice
from typing import Any, Self

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.core.sched.utils import remove_all
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from hybrid_blocks._core.vllm import DecodeBatch, ScheduledDecodes
from hybrid_blocks.vllm import batching, releases

logger = init_logger("vllm.hybrid_blocks")


class Scheduler(VllmScheduler):
    """vLLM's scheduler, or its asynchronous one where the engine schedules asynchronously."""

    def __new__(cls, vllm_config: Any, *_args: Any, **_kwargs: Any) -> Self:
        """Choose as vLLM does between its own two."""
        if cls is Scheduler and vllm_config.scheduler_config.async_scheduling:
            return object.__new__(AsyncScheduler)  # type: ignore[return-value]
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        reason = batching.unsupported_reason(self)
        self._decodes = None if reason else self._decode_batch()
        # Running requests that are dealt with while vLLM's code sees the rest, and the budget.
        self._num_ahead = 0
        self._step_budget = self.max_num_scheduled_tokens
        if reason:
            logger.info("hybrid_blocks: requests are scheduled one by one: %s", reason)
        else:
            logger.info("hybrid_blocks: decoding requests are scheduled in one call")

    def _decode_batch(self) -> DecodeBatch:
        return DecodeBatch(
            self.kv_cache_manager,  # type: ignore[arg-type]
            output_class=EngineCoreOutput,
            states=_STATES,
            max_model_len=self.max_model_len,
            hash_block_size=self.hash_block_size,
            num_hash_lookahead_tokens=releases.installed.num_hash_lookahead_tokens(self),
            is_async=isinstance(self, VllmAsyncScheduler),
        )

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Return what runs next, as vLLM's scheduler would."""
        if self._decodes is None:
            return super().schedule(throttle_prefills)
        if (
            throttle_prefills
            or len(self.running) < 2
            or self._pause_state == PauseState.PAUSED_ALL
            or (self.policy == SchedulingPolicy.PRIORITY and not batching.fits_for_sure(self))
        ):
            # What vLLM's code schedules alone is not known any more.
            self._decodes.forget()
            return super().schedule(throttle_prefills)
        self.kv_cache_manager.new_step_starts()
        # vLLM's code is left one running request at least, since it asks whether there are any.
        decodes = self._decodes.schedule(
            self.running,
            len(self.running) - 1,
            self.max_num_scheduled_tokens,
            None if self.use_v2_model_runner else self.prev_step_scheduled_req_ids,
        )
        with self._rest_of_step(decodes):
            output = super().schedule()
        self._put_first(decodes, output)
        return output

    @contextmanager
    def _rest_of_step(self, decodes: ScheduledDecodes) -> Iterator[None]:
        """Show vLLM's code what is left: of running requests, and of what the step may hold."""
        ahead = self.running[: decodes.num_seen]
        self._num_ahead = len(ahead)
        self._step_budget = self.max_num_scheduled_tokens
        self.running = self.running[len(ahead) :]
        self.max_num_scheduled_tokens -= len(decodes.req_ids)
        self.max_num_active_reqs -= len(ahead)
        # The step has begun: what it caches is not there to be hit before the next one.
        manager: Any = self.kv_cache_manager
        manager.new_step_starts = _nothing
        try:
            yield
        finally:
            del manager.new_step_starts
            self.running[:0] = ahead
            self.max_num_scheduled_tokens = self._step_budget
            self.max_num_active_reqs += len(ahead)
            self._num_ahead = 0

    def _put_first(self, decodes: ScheduledDecodes, output: SchedulerOutput) -> None:
        """Add to a step's output what goes before it."""
        if not decodes.req_ids:
            return
        if not output.total_num_scheduled_tokens:
            releases.installed.count_step(self)
        cached = output.scheduled_cached_reqs
        cached.req_ids[:0] = decodes.req_ids
        cached.new_block_ids[:0] = decodes.new_block_ids
        cached.num_computed_tokens[:0] = decodes.num_computed_tokens
        cached.num_output_tokens[:0] = decodes.num_output_tokens
        cached.all_token_ids = decodes.all_token_ids | cached.all_token_ids
        if not self.use_v2_model_runner:
            self.prev_step_scheduled_req_ids.update(decodes.req_ids)
        output.num_scheduled_tokens = decodes.num_scheduled_tokens | output.num_scheduled_tokens
        output.total_num_scheduled_tokens += len(decodes.req_ids)
        output.has_structured_output_requests |= decodes.has_structured_output
        output.pending_structured_output_tokens |= decodes.pending_structured_output

    def get_request_counts(self) -> tuple[int, int]:
        """Return how many requests run and wait."""
        num_running, num_waiting = super().get_request_counts()
        return num_running + self._num_ahead, num_waiting

    def _mamba_block_aligned_split(self, *args: Any, **kwargs: Any) -> int:
        # Asks how long a chunk can be at most, not what this step has left.
        left, self.max_num_scheduled_tokens = self.max_num_scheduled_tokens, self._step_budget
        try:
            return super()._mamba_block_aligned_split(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = left

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in what the model made of a step and return what clients are told."""
        if self._decodes is None or not batching.is_plain(scheduler_output, model_runner_output):
            return super().update_from_output(scheduler_output, model_runner_output)
        scheduled = scheduler_output.num_scheduled_tokens
        taken = self._decodes.take_outputs(
            self,
            self.requests,
            scheduled,
            model_runner_output.req_id_to_index,
            model_runner_output.sampled_token_ids,
        )
        self.running = remove_all(self.running, set(taken.stopped))
        rest = copy(scheduler_output)
        rest.num_scheduled_tokens = dict(islice(scheduled.items(), taken.num_seen, None))
        following = super().update_from_output(rest, model_runner_output)
        return batching.join(taken.outputs, following)


class AsyncScheduler(Scheduler, VllmAsyncScheduler):
    """The same where steps are scheduled before the outputs of the last one are there."""


def _nothing() -> None:
    pass


_STATES = (
    RequestStatus.RUNNING,
    RequestStatus.PREEMPTED,
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
)
