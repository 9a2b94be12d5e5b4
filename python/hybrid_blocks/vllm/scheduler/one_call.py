"""vLLM's schedulers with one call into Rust for all running requests that decode.

The plugin puts them in place of vLLM's two, also below classes derived from those; and
``--scheduler-cls hybrid_blocks.vllm.Scheduler`` names them. One call schedules the running requests
in order, up to the first that does more than decode a token and its drafts. vLLM's code schedules
the rest of the running requests in the rest of the token budget, and admits.
"""

import sys
from typing import Any, Self

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.core.sched.utils import check_stop, remove_all
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from hybrid_blocks._core.vllm import DecodeBatch, ScheduledDecodes, SpecCounts
from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.level import SCHEDULER, VARIABLE
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.scheduler import batching
from hybrid_blocks.vllm.scheduler.stand_ins import Budget, EncoderConnector, Measured, Running

__all__ = ["AsyncScheduler", "Scheduler", "VllmAsyncScheduler", "VllmScheduler"]

_OFF = f"{SCHEDULER}=off switches this off, {VARIABLE}=off the whole plugin"


class Scheduler(VllmScheduler):
    """vLLM's scheduler, or its asynchronous one where the engine schedules asynchronously."""

    _decodes: DecodeBatch | None = None
    # The requests scheduled ahead of vLLM's code in a step, those that vLLM's code scheduled once
    # both are joined, and the number of running requests that vLLM's code does not see.
    _ahead: ScheduledDecodes | None = None
    _rest: dict[str, int] | None = None
    _num_ahead = 0
    # Counts of drafts whose outputs were taken in one call.
    _spec_counts: SpecCounts | None = None

    def __new__(cls, vllm_config: Any = None, *_args: Any, **_kwargs: Any) -> Self:
        """Choose as vLLM does between its own two, where ``--scheduler-cls`` names this one."""
        config = getattr(vllm_config, "scheduler_config", None)
        is_named = config is not None and config.scheduler_cls is not None
        if cls is Scheduler and is_named and getattr(config, "async_scheduling", False):
            return object.__new__(AsyncScheduler)  # type: ignore[return-value]
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        reason = batching.unsupported_reason(self)
        if not reason:
            rules = batching.rules_of(self, is_async=isinstance(self, VllmAsyncScheduler))
            self._decodes = self._decode_batch(rules)
            self._managed = self.kv_cache_manager
            self._limits_inputs = batching.limits_inputs(self, rules)
            self._draft_slots = rules.draft_slots
            self._mamba_block_aligned_split = self._split_by_whole_budget  # type: ignore[method-assign]
            # The whole step's budget: vLLM's code sees the rest alone.
            self._step_budget = self.max_num_scheduled_tokens
            self._step_config = self.scheduler_config
        if reason:
            logger.info("hybrid_blocks: requests are scheduled one by one: %s", reason)
        else:
            logger.info("hybrid_blocks: decoding requests are scheduled in one call; %s", _OFF)

    def _decode_batch(self, rules: batching.Rules) -> DecodeBatch:
        connector = self.ec_connector
        return DecodeBatch(
            self.kv_cache_manager,  # type: ignore[arg-type]
            request_class=Request,
            output_class=EngineCoreOutput,
            check_stop=check_stop,
            ensure_encoded=None if connector is None else connector.ensure_cache_available,
            states=_STATES,
            rules=rules,
        )

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Return what runs next, as vLLM's scheduler would."""
        if self._decodes is not None and self.kv_cache_manager is not self._managed:
            # A derived class took another one after all.
            self._decodes = None
        if self._decodes is None:
            return super().schedule(throttle_prefills)
        if (
            len(self.running) < 2
            or self._pause_state == PauseState.PAUSED_ALL
            or (self.policy == SchedulingPolicy.PRIORITY and not batching.fits_for_sure(self))
            or releases.installed.must_see_whole_step(self)
        ):
            return super().schedule(throttle_prefills)
        self.kv_cache_manager.new_step_starts()
        ahead = self._decodes.schedule(
            self.running,
            self.max_num_scheduled_tokens,
            self.scheduler_config.max_num_batched_tokens,
            self.current_step + 1,
            None if self.use_v2_model_runner else self.prev_step_scheduled_req_ids,
            # vLLM's code gives a request that lacks only its last token as many tokens as decoding
            # requests get, if it scheduled one of those itself.
            self.num_spec_tokens > 0 and self.get_request_counts()[1] > 0,
        )
        return self._schedule_rest(ahead, throttle_prefills)

    def _schedule_rest(self, ahead: ScheduledDecodes, throttle_prefills: bool) -> SchedulerOutput:
        """Show vLLM's code the rest: of the running requests, and of the step's budget."""
        running = Running(self.running[: ahead.num_seen], self.running[ahead.num_seen :])
        config, connector = self.scheduler_config, self.ec_connector
        self._ahead, self._rest = ahead, None
        self._num_ahead = ahead.num_seen
        self._step_budget, self._step_config = self.max_num_scheduled_tokens, config
        self.running = running
        if self._limits_inputs:
            num_taken = ahead.num_tokens + self._draft_slots * len(ahead.req_ids)
            self.scheduler_config = Budget(self, num_taken)  # type: ignore[assignment]
        if connector is not None:
            self.ec_connector = EncoderConnector(connector, self._join_ahead)  # type: ignore[assignment]
        self.max_num_scheduled_tokens -= ahead.num_tokens
        self.max_num_active_reqs -= ahead.num_seen
        # The step has begun: what it caches is not there to be hit before the next one.
        manager: Any = self.kv_cache_manager
        manager.new_step_starts = _nothing
        try:
            return super().schedule(throttle_prefills)
        finally:
            del manager.new_step_starts
            self.running = running.all()
            self.max_num_scheduled_tokens = self._step_budget
            self.scheduler_config, self.ec_connector = config, connector
            self.max_num_active_reqs += ahead.num_seen
            self._ahead, self._rest, self._num_ahead = None, None, 0

    def _build_kv_connector_meta(self, connector: Any, scheduler_output: SchedulerOutput) -> Any:
        self._join_ahead(scheduler_output)
        return super()._build_kv_connector_meta(connector, scheduler_output)

    def _join_ahead(self, scheduler_output: SchedulerOutput) -> None:
        # Connectors look at the whole step, before its tokens count as computed.
        if self._ahead is not None and self._rest is None:
            self._join(scheduler_output, self._ahead)

    def _get_encoder_input_updates(
        self, scheduled: dict[str, int], new_requests: Any, scheduled_encoder_inputs: Any
    ) -> Any:
        if self._ahead is not None and self._pending_encoder_input_ids:
            ahead = self._ahead.num_scheduled_tokens
            pending = {
                req_id: ahead[req_id]
                for req_id, inputs in self._pending_encoder_input_ids.items()
                if inputs and req_id in ahead
            }
            scheduled = pending | scheduled
        return super()._get_encoder_input_updates(scheduled, new_requests, scheduled_encoder_inputs)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        ahead = self._ahead
        if ahead is None and self._decodes is not None:
            # Steps that vLLM's code or a derived class schedules alone are not known here.
            self._decodes.forget()
        if ahead is None or self._decodes is None or not ahead.req_ids:
            super()._update_after_schedule(scheduler_output)
            return
        self._join_ahead(scheduler_output)
        rest = batching.copied(scheduler_output)
        rest.num_scheduled_tokens = self._rest or {}
        if not rest.num_scheduled_tokens:
            # vLLM's code took the step for an empty one.
            releases.installed.count_step(self)
            self.sched_step_seq += int(self.defer_block_free)
        super()._update_after_schedule(rest)
        # A connector, which saw the step before, is not told of grammars by vLLM either.
        scheduler_output.has_structured_output_requests = (
            rest.has_structured_output_requests or ahead.has_structured_output
        )
        scheduler_output.pending_structured_output_tokens = (
            rest.pending_structured_output_tokens or ahead.pending_structured_output
        )
        self._decodes.advance(
            [-1] * scheduler_output.num_spec_tokens_to_schedule,
            self.current_step,
            self.sched_step_seq if self.defer_block_free else None,
        )
        if not self.use_v2_model_runner:
            self.prev_step_scheduled_req_ids.update(ahead.num_scheduled_tokens)

    def _join(self, output: SchedulerOutput, ahead: ScheduledDecodes) -> None:
        """Add to a step's output what goes before it."""
        self._rest = output.num_scheduled_tokens
        if not ahead.req_ids:
            return
        cached = output.scheduled_cached_reqs
        cached.req_ids[:0] = ahead.req_ids
        cached.new_token_ids[:0] = ahead.new_token_ids
        cached.new_block_ids[:0] = ahead.new_block_ids
        cached.num_computed_tokens[:0] = ahead.num_computed_tokens
        cached.num_output_tokens[:0] = ahead.num_output_tokens
        cached.all_token_ids = ahead.all_token_ids | cached.all_token_ids
        ahead.num_scheduled_tokens.update(output.num_scheduled_tokens)
        output.num_scheduled_tokens = ahead.num_scheduled_tokens
        output.total_num_scheduled_tokens += ahead.num_tokens
        output.scheduled_spec_decode_tokens = (
            ahead.spec_tokens | output.scheduled_spec_decode_tokens
        )
        releases.installed.note_drafts(output, are_unused=ahead.drafts_unused)
        if output.kv_connector_block_state is not None:
            output.kv_connector_block_state.req_ids.update(ahead.req_ids)

    def get_request_counts(self) -> tuple[int, int]:
        """Return how many requests run and wait."""
        num_running, num_waiting = super().get_request_counts()
        return num_running + self._num_ahead, num_waiting

    def _split_by_whole_budget(self, *args: Any, **kwargs: Any) -> int:
        # vLLM's code asks how long a chunk can be at most, not what this step has left.
        left, config = self.max_num_scheduled_tokens, self.scheduler_config
        self.max_num_scheduled_tokens = self._step_budget
        self.scheduler_config = self._step_config
        try:
            # Not of the instance, which is this very method; of a subclass, if it has its own.
            return type(self)._mamba_block_aligned_split(self, *args, **kwargs)
        finally:
            self.max_num_scheduled_tokens, self.scheduler_config = left, config

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in the model's output of a step and return the outputs for clients."""
        if self._decodes is None or not batching.can_be_taken(model_runner_output):
            return super().update_from_output(scheduler_output, model_runner_output)
        rest = batching.copied(scheduler_output)
        if self.defer_block_free and scheduler_output.total_num_scheduled_tokens > 0:
            # Before anything else is freed, and once.
            self.processed_step_seq += 1
            releases.installed.drain_deferred(self)
            rest.total_num_scheduled_tokens = 0
        scheduled = scheduler_output.num_scheduled_tokens
        taken = self._decodes.take_outputs(
            self,
            self.requests,
            scheduled,
            model_runner_output.req_id_to_index,
            model_runner_output.sampled_token_ids,
            batching.extras_of(self, scheduler_output, model_runner_output),
        )
        if taken.stopped:
            self.running = remove_all(self.running, set(taken.stopped))
        self._spec_counts = taken.spec_counts
        rest.num_scheduled_tokens = batching.last(scheduled, len(scheduled) - taken.num_seen)
        metrics: Any = self.perf_metrics
        if metrics is not None:
            self.perf_metrics = Measured(metrics, scheduler_output)  # type: ignore[assignment]
        try:
            following = super().update_from_output(rest, model_runner_output)
        finally:
            self.perf_metrics = metrics
        return batching.join(taken.outputs, following)

    def make_stats(
        self, spec_decoding_stats: SpecDecodingStats | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return a step's statistics, those of outputs taken in one call included."""
        counts, self._spec_counts = self._spec_counts, None
        stats = batching.total(counts, spec_decoding_stats)
        return super().make_stats(stats, *args, **kwargs)

    def _free_inputs(self, request: Request) -> bool:
        """Free inputs of the encoder that are computed, and return whether a request has others."""
        self._free_encoder_inputs(request)
        return bool(self.encoder_cache_manager.get_cached_input_ids(request))

    def _accepts(self, request: Request, token_ids: list[int]) -> bool:
        """Tell a request's grammar of its tokens; end the request if it rejects them."""
        if self.structured_output_manager.accept_tokens(request, token_ids):
            return True
        logger.error(
            "Unexpected: grammar rejected tokens %s for request %s. Terminating request.",
            token_ids,
            request.request_id,
        )
        request.status = RequestStatus.FINISHED_ERROR
        request.resumable = False
        return False

    def _end(self, request: Request, output: EngineCoreOutput) -> None:
        """Free a request that is done, and say in its last output why it is."""
        output.finish_reason = request.get_finished_reason()
        output.stop_reason = request.stop_reason
        output.events = output.events or request.take_events()
        output.spec_decode_metrics = request.spec_decode_metrics
        loaded, encoded = self._free_request(request)
        stats = output.prefill_stats
        if loaded is not None and stats is not None and loaded.get("do_remote_prefill"):
            # The hit of its prompt on the engine that computed it.
            loaded["remote_prefill_cached_tokens"] = stats.num_cached_tokens
        output.kv_transfer_params = loaded
        output.ec_transfer_params = encoded


class AsyncScheduler(Scheduler, VllmAsyncScheduler):
    """The scheduler of an engine that schedules a step before the last one's outputs."""


def _nothing() -> None:
    pass


REPLACEMENTS = ((VllmScheduler, Scheduler), (VllmAsyncScheduler, AsyncScheduler))
"""vLLM's schedulers and this package's."""


def is_installed() -> bool:
    """Return whether vLLM's own names stand for this package's schedulers."""
    return vars(sys.modules[VllmScheduler.__module__])[VllmScheduler.__name__] is Scheduler


_STATES = (
    RequestStatus.RUNNING,
    RequestStatus.PREEMPTED,
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
)
