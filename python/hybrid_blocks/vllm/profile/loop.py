"""The engine's loop without a model: schedule, make up outputs, feed them back."""

import hashlib
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from hybrid_blocks.vllm.profile import told
from hybrid_blocks.vllm.profile.times import Step
from hybrid_blocks.vllm.profile.workload import Job

_TOKEN = 7


class Loop:
    """Keeps ``num_requests`` requests running, one step ahead of their outputs, as vLLM does."""

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Iterator[Job],
        hasher: Callable[[Request], Any],
        num_requests: int,
    ) -> None:
        self.scheduler = scheduler
        self.hasher = hasher
        self._jobs = jobs
        self._num_requests = num_requests
        self._num_added = 0
        self._in_flight: tuple[SchedulerOutput, ModelRunnerOutput] | None = None
        self.decisions = hashlib.blake2b(digest_size=16)
        self.outputs = hashlib.blake2b(digest_size=16)

    def run(self, num_steps: int) -> list[Step]:
        """Run some steps and return what each took."""
        return [self.step() for _ in range(num_steps)]

    def step(self) -> Step:
        """Admit what is missing, schedule, and take in the outputs of the step before."""
        jobs = [next(self._jobs) for _ in range(self._num_missing())]
        begin = perf_counter_ns()
        for prompt, num_output_tokens in jobs:
            self._add(prompt, num_output_tokens)
        admitted = perf_counter_ns()
        scheduled = self.scheduler.schedule()
        done = perf_counter_ns()
        in_flight, self._in_flight = self._in_flight, (scheduled, self._outputs(scheduled))
        before = len(self.scheduler.requests)
        resumed = perf_counter_ns()
        outputs = self.scheduler.update_from_output(*in_flight) if in_flight is not None else {}
        updated = perf_counter_ns()
        self.decisions.update(told.of_schedule(scheduled))
        self.outputs.update(told.of_outputs(outputs))
        return Step(
            begin=begin,
            admitted=admitted,
            scheduled=done,
            resumed=resumed,
            updated=updated,
            num_scheduled=len(scheduled.num_scheduled_tokens),
            num_finished=before - len(self.scheduler.requests),
        )

    def _num_missing(self) -> int:
        return self._num_requests - len(self.scheduler.requests)

    def _add(self, prompt: list[int], num_output_tokens: int) -> None:
        request = Request(
            request_id=f"request-{self._num_added}",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=num_output_tokens, ignore_eos=True),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        self._num_added += 1
        self.scheduler.add_request(request)

    def _outputs(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(scheduled.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[] if requests[id_].is_prefill_chunk else [_TOKEN] for id_ in ids]
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id_: index for index, id_ in enumerate(ids)},
            sampled_token_ids=sampled,
        )
