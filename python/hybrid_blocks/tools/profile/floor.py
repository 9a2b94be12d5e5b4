"""The floor of a step: a plain Python loop that makes what workers and clients must be handed.

Nothing is decided, no block is handed out, and no request begins or ends. A scheduler whose outputs
are vLLM's objects cannot be much faster than this.
"""

from time import perf_counter_ns
from typing import Any

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

from hybrid_blocks.tools.profile import features
from hybrid_blocks.tools.profile.probes import Step
from hybrid_blocks.tools.profile.workload import VOCABULARY, Settings


class Floor:
    """Decodes ``settings.requests`` requests with as many drafts and log probabilities as asked."""

    def __init__(self, settings: Settings) -> None:
        random = np.random.default_rng(settings.seed)
        prompts = (settings.requests, settings.prompt_tokens)
        self.ids = [f"request-{number}" for number in range(settings.requests)]
        self.tokens: list[list[int]] = random.integers(VOCABULARY, size=prompts).tolist()
        self.output_tokens: list[list[int]] = [[] for _ in self.ids]
        self._num_drafts = settings.num_drafts
        self._sample = features.sampler(settings)

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
            num_scheduled=len(self.ids),
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
        told = []
        requests = zip(self.ids, self.tokens, self.output_tokens, sampled, strict=True)
        for id_, tokens, outputs, new in requests:
            for token in new:
                outputs.append(token)
                tokens.append(token)
            told.append(EngineCoreOutput(id_, new))
        if logprobs is not None:
            for index, output in enumerate(told):
                slice_ = logprobs.slice_request(index, len(output.new_token_ids))
                output.new_logprobs = slice_
        return {0: EngineCoreOutputs(outputs=told)}
