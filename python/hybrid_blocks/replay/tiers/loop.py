"""vLLM's engine without a model, in virtual time."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from hybrid_blocks.replay.clock import Arrivals, StepTime
from hybrid_blocks.replay.errors import RefusedRequestError
from hybrid_blocks.replay.tiers.device import Device
from hybrid_blocks.trace import Trace

if TYPE_CHECKING:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

_IDLE_STEPS = 10_000
"""So many steps in which nothing runs, and nothing ever will."""


class Loop:
    """Serves a trace step by step; outputs are prescribed, not computed.

    Attributes:
        now: virtual time in seconds.
        num_steps: steps so far, those that only moved chunks included.
        finished: requests that ended.
        prompt_tokens: of requests that ran.
        device_hits: of these, tokens found on the device when a request first ran.
        hits: tokens found below it, by tier.
        output_tokens: sampled.
        preemptions: times that a running request lost its blocks.
        peak_running: most requests running at once.

    """

    def __init__(
        self, trace: Trace, device: Device, step_time: StepTime, left_out: frozenset[int]
    ) -> None:
        self._trace = trace
        self._device = device
        self._step_time = step_time
        self._left_out = left_out
        self._arrivals = Arrivals(trace)
        self._outputs: dict[str, Sequence[int]] = {}
        self.now = 0.0
        self.num_steps = 0
        self.finished = 0
        self.prompt_tokens = 0
        self.device_hits = 0
        self.hits: dict[CacheHitSource, int] = {}
        self.output_tokens = 0
        self.preemptions = 0
        self.peak_running = 0

    def run(self, on_progress: Callable[[int], None]) -> None:
        """Serve all requests.

        Raises:
            RefusedRequestError: the scheduler never runs a request though it is alone.

        """
        scheduler = self._device.scheduler
        idle = 0
        while True:
            for number in self._arrivals.pop_until(self.now):
                self._arrive(number)
            if not self._outputs and not self._has_transfers():
                if self._arrivals.next_time == float("inf"):
                    return
                self.now = self._arrivals.next_time
                continue
            scheduled = scheduler.schedule()
            self._end(scheduled)
            on_progress(self.finished)
            idle = 0 if scheduled.total_num_scheduled_tokens or not self._outputs else idle + 1
            if idle > _IDLE_STEPS:
                number = int(next(iter(self._outputs)))
                raise RefusedRequestError(
                    number,
                    f"request {number} of {self._trace.prompt_tokens[number]:,} prompt tokens is "
                    "never run, though nothing else is",
                )

    def _has_transfers(self) -> bool:
        device = self._device
        return device.scheduler.has_requests() or device.connector.has_pending_push_work()

    def _arrive(self, number: int) -> None:
        if number in self._left_out:
            self._arrivals.finish(number, self.now)
            return
        tokens = self._trace.token_ids(number).tolist()
        length = int(self._trace.prompt_tokens[number])
        self._outputs[str(number)] = tokens[length:]
        self._device.scheduler.add_request(
            Request(
                request_id=str(number),
                prompt_token_ids=tokens[:length],
                sampling_params=SamplingParams(max_tokens=len(tokens) - length, ignore_eos=True),
                pooling_params=None,
                arrival_time=self.now,
                block_hasher=self._device.hasher,
            )
        )

    def _end(self, scheduled: SchedulerOutput) -> None:
        """Compute a scheduled step: transfers, time, and the tokens that it samples."""
        scheduler = self._device.scheduler
        counts = scheduled.num_scheduled_tokens
        context = sum(scheduler.requests[id_].num_computed_tokens for id_ in counts)
        self.now += self._step_time.seconds(
            prefill_tokens=scheduled.total_num_scheduled_tokens - len(counts),
            sequences=len(counts),
            context_tokens=context,
        )
        self.num_steps += 1
        self.preemptions += len(scheduled.preempted_req_ids or ())
        self.peak_running = max(self.peak_running, len(scheduler.running))
        sampled = [self._sampled(id_) for id_ in counts]
        self.output_tokens += sum(map(len, sampled))
        told = scheduler.update_from_output(
            scheduled,
            ModelRunnerOutput(
                req_ids=list(counts),
                req_id_to_index={id_: index for index, id_ in enumerate(counts)},
                sampled_token_ids=sampled,
                kv_connector_output=self._device.connector.run(scheduled),
            ),
        )
        for outputs in told.values():
            self._count(outputs)

    def _sampled(self, id_: str) -> list[int]:
        request = self._device.scheduler.requests[id_]
        if request.num_computed_tokens < request.num_tokens:
            return []
        return [int(self._outputs[id_][request.num_output_tokens])]

    def _count(self, outputs: object) -> None:
        """Count the hits of requests that ran for the first time, and end what ended."""
        stats = outputs.scheduler_stats  # type: ignore[attr-defined]
        if stats is not None and stats.connector_prefix_cache_stats is not None:
            for source, tokens in stats.connector_prefix_cache_stats.hits_by_source.items():
                self.hits[source] = self.hits.get(source, 0) + tokens
        for output in outputs.outputs:  # type: ignore[attr-defined]
            if output.prefill_stats is not None:
                self.prompt_tokens += output.prefill_stats.num_prompt_tokens
                self.device_hits += output.prefill_stats.num_local_cached_tokens
            if output.finish_reason is not None:
                del self._outputs[output.request_id]
                self.finished += 1
                self._arrivals.finish(int(output.request_id), self.now)
