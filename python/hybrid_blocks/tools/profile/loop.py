"""The engine's loop without a model: schedule, make up outputs, feed them back; and its floor.

Each step's decisions and outputs go into a fingerprint, so that levels can be compared. The floor
makes the objects that workers and clients must be handed, and decides nothing: no block is handed
out, and no request begins or ends. A scheduler whose outputs are vLLM's objects cannot be much
faster than the floor.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from time import perf_counter_ns
from typing import Any

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from hybrid_blocks.tools.profile import engine
from hybrid_blocks.tools.profile.result import Step
from hybrid_blocks.tools.profile.workload import VOCABULARY, Job, Recorded, Settings


class Floor:
    """Decodes ``settings.requests`` requests with as many drafts and log probabilities as asked."""

    def __init__(self, settings: Settings) -> None:
        random = np.random.default_rng(settings.seed)
        prompts = (settings.requests, settings.prompt_tokens)
        self.ids = [f"request-{number}" for number in range(settings.requests)]
        self.tokens: list[list[int]] = random.integers(VOCABULARY, size=prompts).tolist()
        self.output_tokens: list[list[int]] = [[] for _ in self.ids]
        self._num_drafts = settings.num_drafts
        self._sample = engine.sampler(settings)

    def run(self, num_steps: int) -> list[Step]:
        """Run some steps and return what each took."""
        return [self.step() for _ in range(num_steps)]

    def step(self) -> Step:
        """Make a step's output for workers, and its outputs for clients."""
        sampled, logprobs = self._sample([self._num_drafts] * len(self.ids))
        begin = perf_counter_ns()
        self.schedule()
        scheduled = perf_counter_ns()
        self.update(sampled, logprobs)
        updated = perf_counter_ns()
        return Step(
            begin=begin,
            admitted=begin,
            scheduled=scheduled,
            resumed=scheduled,
            updated=updated,
            num_running=len(self.ids),
            num_finished=0,
            only_decodes=True,
        )

    def schedule(self) -> SchedulerOutput:
        """Return a step in which each request decodes."""
        output = SchedulerOutput.make_empty()
        num_scheduled, drafted = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        cached = output.scheduled_cached_reqs
        ids, new_blocks = cached.req_ids, cached.new_block_ids
        num_computed, num_outputs = cached.num_computed_tokens, cached.num_output_tokens
        drafts = [-1] * self._num_drafts
        num_new = 1 + len(drafts)
        for id_, tokens, outputs in zip(self.ids, self.tokens, self.output_tokens, strict=True):
            num_scheduled[id_] = num_new
            ids.append(id_)
            new_blocks.append(None)
            num_computed.append(len(tokens))
            num_outputs.append(len(outputs))
            if drafts:
                drafted[id_] = drafts
        output.total_num_scheduled_tokens = num_new * len(ids)
        return output

    def update(self, sampled: list[list[int]], logprobs: Any) -> dict[int, EngineCoreOutputs]:
        """Append each request's tokens and return the output for its client."""
        outputs_of_step = []
        requests = zip(self.ids, self.tokens, self.output_tokens, sampled, strict=True)
        for id_, tokens, outputs, new in requests:
            for token in new:
                outputs.append(token)
                tokens.append(token)
            outputs_of_step.append(EngineCoreOutput(id_, new))
        if logprobs is not None:
            for index, output in enumerate(outputs_of_step):
                slice_ = logprobs.slice_request(index, len(output.new_token_ids))
                output.new_logprobs = slice_
        return {0: EngineCoreOutputs(outputs=outputs_of_step)}


_NAME = "request-"


class Loop:
    """Keeps ``settings.requests`` running, one step ahead of their outputs, as vLLM does."""

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Iterator[Job],
        hasher: Callable[[Request], Any],
        settings: Settings,
        *,
        is_compared: bool = True,
    ) -> None:
        """Take ``jobs`` from now on; what is not compared has no fingerprint."""
        self.scheduler = scheduler
        self.hasher = hasher
        self._jobs = jobs
        self._settings = settings
        self._sample = engine.sampler(settings)
        self._is_compared = is_compared
        self._num_added = 0
        self._in_flight: tuple[SchedulerOutput, ModelRunnerOutput] | None = None
        self._only_decoded = False
        self.decisions = hashlib.blake2b(digest_size=16)
        self.outputs = hashlib.blake2b(digest_size=16)

    def run(self, num_steps: int) -> list[Step]:
        """Run some steps and return what each took."""
        return [self.step() for _ in range(num_steps)]

    def step(self) -> Step:
        """Admit what is missing, schedule, and take in the outputs of the step before."""
        num_missing = self._settings.requests - len(self.scheduler.requests)
        jobs = [next(self._jobs) for _ in range(num_missing)]
        begin = perf_counter_ns()
        for prompt, num_output_tokens in jobs:
            self._add(prompt, num_output_tokens)
        admitted = perf_counter_ns()
        scheduled = self.scheduler.schedule()
        done = perf_counter_ns()
        in_flight, self._in_flight = self._in_flight, (scheduled, self._outputs(scheduled))
        before = len(self.scheduler.requests)
        num_running = len(self.scheduler.running)
        resumed = perf_counter_ns()
        outputs = self.scheduler.update_from_output(*in_flight) if in_flight is not None else {}
        updated = perf_counter_ns()
        if self._is_compared:
            self.decisions.update(fingerprint_schedule(scheduled))
            self.outputs.update(fingerprint_outputs(outputs))
        self._note_ended(outputs.values())
        num_finished = before - len(self.scheduler.requests)
        only_decodes = self._decodes(scheduled) and not num_finished
        before_too, self._only_decoded = self._only_decoded, only_decodes
        return Step(
            begin=begin,
            admitted=admitted,
            scheduled=done,
            resumed=resumed,
            updated=updated,
            num_running=num_running,
            num_finished=num_finished,
            only_decodes=only_decodes and before_too,
        )

    def _decodes(self, scheduled: SchedulerOutput) -> bool:
        most = len(scheduled.num_scheduled_tokens) * (1 + self._settings.num_drafts)
        return not scheduled.scheduled_new_reqs and scheduled.total_num_scheduled_tokens <= most

    def _add(self, prompt: list[int], num_output_tokens: int) -> None:
        about, sampling = engine.request_options(self._settings, self._num_added)
        request = Request(
            request_id=f"{_NAME}{self._num_added}",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(
                max_tokens=num_output_tokens, ignore_eos=True, **sampling
            ),
            pooling_params=None,
            block_hasher=self.hasher,
            **about,
        )
        self._num_added += 1
        self.scheduler.add_request(engine.allow(request))

    def _note_ended(self, by_client: Iterable[EngineCoreOutputs]) -> None:
        if isinstance(self._jobs, Recorded):
            for one in by_client:
                for output in one.outputs:
                    if output.finish_reason is not None:
                        self._jobs.end(_number(output.request_id))

    def _outputs(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(scheduled.num_scheduled_tokens)
        requests = self.scheduler.requests
        drafts = scheduled.scheduled_spec_decode_tokens
        sampled, logprobs = self._sample(
            [-1 if requests[id_].is_prefill_chunk else len(drafts.get(id_, ())) for id_ in ids]
        )
        if isinstance(self._jobs, Recorded):
            answers = [self._jobs.answer(_number(id_)) for id_ in ids]
            pairs = zip(answers, sampled, strict=True)
            sampled = [list(islice(answer, len(tokens))) for answer, tokens in pairs]
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id_: index for index, id_ in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=logprobs,
        )


def _number(request_id: str) -> int:
    return int(request_id.removeprefix(_NAME))


def fingerprint_schedule(scheduled: SchedulerOutput) -> bytes:
    """Return everything that a step decided on: requests, tokens, blocks."""
    new = [
        (one.req_id, one.block_ids, one.num_computed_tokens) for one in scheduled.scheduled_new_reqs
    ]
    cached = vars(scheduled.scheduled_cached_reqs)
    rest = vars(scheduled) | {"scheduled_new_reqs": new, "scheduled_cached_reqs": cached}
    # A hint to kernels, which vLLM gives before 0.32 and this package never.
    rest["num_common_prefix_blocks"] = []
    return repr({name: _ordered(value) for name, value in rest.items()}).encode()


def _ordered(value: object) -> object:
    """Return sets as sorted lists: their order means nothing and differs between processes."""
    match value:
        case set():
            return sorted(value)
        case dict():
            return {key: _ordered(one) for key, one in value.items()}
        case _:
            return value


def fingerprint_outputs(outputs: dict[int, EngineCoreOutputs]) -> bytes:
    """Return the outputs for clients, without times."""
    clients = []
    for client, of_client in outputs.items():
        stats = of_client.scheduler_stats
        counts = stats and (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage)
        cache = stats and stats.prefix_cache_stats
        ours = [
            (one.request_id, one.new_token_ids, one.finish_reason, one.prefill_stats)
            for one in of_client.outputs
        ]
        clients.append((client, counts, cache, ours))
    return repr(clients).encode()
