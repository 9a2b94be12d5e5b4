"""A worker that plans a real model's cache, computes nothing, and answers when a card would.

The time of a step is a constant, or that of a row of the clock.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cases import MEMORY, STEP
from clocks import Clock, Wall
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.step_time import record, step_time
from hybrid_blocks.model import load_model
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

TOKEN = 32
"""The token that a request samples, unless the worker has its ``outputs``."""

Milliseconds = Callable[[int, int, int, float], float]
"""Time of a step by prompt tokens, requests that decode, tokens that those read, and pairs."""


def milliseconds(step: str) -> Milliseconds:
    """Return the time of a step: always the same, or that of ``model/card/tp`` by the clock."""
    try:
        constant = float(step)
    except ValueError:
        model, card, tp = step.rsplit("/", 2)
        rows = (row for row in record().rows if (row.model, row.card) == (model, card))
        if (found := next((row for row in rows if row.tp == int(tp)), None)) is None:
            found = step_time(load_model(model), Deployment(card=card, tp=int(tp)))
        assert found is not None, f"no clock of {step}"
        return found.milliseconds
    return lambda *_: constant


class Sampled(AsyncModelRunnerOutput):
    """The output of a step, to be had once the card would have computed it."""

    def __init__(
        self, output: ModelRunnerOutput, end: float, wait: Callable[[float], None]
    ) -> None:
        self._output, self._end, self._wait = output, end, wait

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the end of the step."""
        self._wait(self._end)
        return self._output

    def get_kv_connector_output(self) -> None:
        """Return nothing: no connector is served."""


class NullWorker(WorkerBase):
    """Stands for vLLM's GPU worker.

    A step begins when it is launched and the one before has ended.

    Attributes:
        clock: the time in which steps end.
        milliseconds: time of a step.
        steps: how many were launched.
        busy_s: what they take.
        outputs: tokens that requests sample, by id, where they are prescribed.
    """

    def init_device(self) -> None:
        """Begin the card's time."""
        self.device = torch.device("cpu")
        self.milliseconds = milliseconds(os.environ.get(STEP, "0"))
        self.clock: Clock = Wall()
        self.free_at = self.busy_s = 0.0
        self.steps = 0
        self.outputs: dict[str, Iterator[int]] = {}
        self._prefilling: dict[str, tuple[int, int]] = {}
        """Computed and known tokens of requests whose prompt is under way."""

    def load_model(self, *, load_dummy_weights: bool = False) -> None:  # noqa: ARG002
        """Build the model's layers without memory."""
        config = self.vllm_config
        with set_default_torch_dtype(self.model_config.dtype), set_current_vllm_config(config):
            self.model = initialize_model(config)

    def get_model(self) -> Any:
        """Return the model."""
        return self.model

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """Return what the layers keep."""
        return dict(get_kv_cache_spec(self.vllm_config))

    def determine_available_memory(self) -> int:
        """Return the bytes of the KV cache."""
        return int(float(os.environ[MEMORY]) * 2**30)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate no memory for the cache."""

    def update_max_model_len(self, max_model_len: int) -> None:
        """Take the length that vLLM fits into the memory."""
        self.model_config.max_model_len = max_model_len

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Compile no part of the model."""
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Return what the engine may be asked for."""
        return ("generate",)

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Launch a step."""
        for id_ in output.finished_req_ids:
            self._prefilling.pop(id_, None)
            self.outputs.pop(id_, None)
        counts = output.num_scheduled_tokens
        if not counts:
            return EMPTY_MODEL_RUNNER_OUTPUT
        cached = output.scheduled_cached_reqs
        assert not cached.resumed_req_ids, "the second model runner gets resumed requests as new"
        context = sum(cached.num_computed_tokens)
        for new in output.scheduled_new_reqs:
            known = len(new.prefill_token_ids or new.prompt_token_ids)
            self._prefilling[new.req_id] = new.num_computed_tokens, known
            context += new.num_computed_tokens
        prompt, pairs, silent = 0, 0.0, set()
        for id_, (start, known) in list(self._prefilling.items()):
            if (count := counts.get(id_)) is None:
                continue
            prompt += count
            pairs += count * (start + count / 2)
            context -= start
            if start + count < known:
                silent.add(id_)
                self._prefilling[id_] = start + count, known
            else:
                del self._prefilling[id_]
        took = self.milliseconds(prompt, output.total_num_scheduled_tokens - prompt, context, pairs)
        self.free_at = max(self.clock.now(), self.free_at) + took / 1e3
        self.busy_s += took / 1e3
        self.steps += 1
        self._launched = Sampled(self._sampled(list(counts), silent), self.free_at, self.clock.wait)
        return None

    def _sampled(self, ids: list[str], silent: set[str]) -> ModelRunnerOutput:
        indices = {id_: index for index, id_ in enumerate(ids)}
        if not self.outputs:
            return ModelRunnerOutput(ids, indices, [[] if i in silent else [TOKEN] for i in ids])
        tokens = [
            [] if id_ in silent else [next(self.outputs.get(id_, iter(())), TOKEN)] for id_ in ids
        ]
        return ModelRunnerOutput(ids, indices, tokens)

    def sample_tokens(self, grammar_output: Any) -> AsyncModelRunnerOutput:  # noqa: ARG002
        """Return what the launched step samples."""
        return self._launched

    def shutdown(self) -> None:
        """Hold nothing that would have to be given back."""
