"""The level and the scheduler that an engine reaches, by the plugin's own rules."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec
import numpy as np
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request

from hybrid_blocks.errors import IntegrityError
from hybrid_blocks.model import Model
from hybrid_blocks.reasons import sentence
from hybrid_blocks.tools.doctor.engine import Engine
from hybrid_blocks.tools.doctor.environment import MODEL_RUNNER, environment
from hybrid_blocks.tools.doctor.features import Features
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import VARIABLE, Level, grant, scheduler_grant
from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.natural import refusal
from hybrid_blocks.vllm.scheduler import batching
from hybrid_blocks.vllm.scheduler import one_call as ours

NUM_REQUESTS = 4
_NUM_STEPS = 6
_PROMPT_TOKENS = 24
_ENCODER_TOKENS = 1024
_NUM_LOGPROBS = 2


class Probe:
    """A scheduler after a few steps.

    ``num_decoded`` counts the outputs of decode steps, ``num_left`` those that were left to vLLM's
    code.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.num_decoded = 0
        self.num_left = 0


def probed(engine: Engine) -> Probe:
    """Serve a few requests that have the engine's features, and return what was seen."""
    scheduler: Any = engine.scheduler(_watched(is_async=engine.is_async))
    if engine.features.images:
        # The decoder that stands for the model has no encoder.
        scheduler.max_num_encoder_input_tokens = _ENCODER_TOKENS
        scheduler.encoder_cache_manager = EncoderCacheManager(_ENCODER_TOKENS)
    if engine.features.aux_outputs:
        # Workers make these outputs, and here there are none.
        scheduler.aux_output_connector.take_output = lambda *_: None
    probe = Probe(scheduler)
    hasher = kv_cache_utils.get_request_block_hasher(scheduler.hash_block_size, sha256)
    for number in range(NUM_REQUESTS):
        scheduler.add_request(_request(engine.features, number, hasher))
    for _ in range(_NUM_STEPS):
        scheduled = scheduler.schedule()
        requests = [scheduler.requests[id_] for id_ in scheduled.num_scheduled_tokens]
        is_decoding = all(request.num_output_tokens for request in requests)
        scheduler.num_seen_by_vllm = 0
        scheduler.update_from_output(scheduled, _output(engine.features, requests))
        if is_decoding:
            probe.num_decoded += len(requests)
            probe.num_left += scheduler.num_seen_by_vllm
    if not probe.num_decoded:
        raise IntegrityError("no request of the engine came to decode a token")
    return probe


@cache
def _watched(*, is_async: bool) -> type[VllmScheduler]:
    """Return this package's scheduler with an eye on what it hands to vLLM's code."""
    own: type = ours.AsyncScheduler if is_async else ours.Scheduler
    vllms: type = VllmAsyncScheduler if is_async else VllmScheduler

    class Watched(vllms):  # type: ignore[misc]
        num_seen_by_vllm = 0

        def update_from_output(
            self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
        ) -> Any:
            self.num_seen_by_vllm += len(scheduler_output.num_scheduled_tokens)
            return super().update_from_output(scheduler_output, model_runner_output)

    # A subclass by name only, so that what is between the two in its order is Watched.
    return type("Probed", (own, Watched), {"__module__": __name__})


def _request(features: Features, number: int, hasher: Any) -> Request:
    images = [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=f"image{number}",
            mm_position=PlaceholderRange(offset=2, length=4),
        )
    ]
    return Request(
        request_id=f"request{number}",
        prompt_token_ids=list(range(number, number + _PROMPT_TOKENS)),
        sampling_params=SamplingParams(
            max_tokens=64, logprobs=_NUM_LOGPROBS if features.logprobs else None
        ),
        pooling_params=None,
        mm_features=images if features.images else None,
        lora_request=LoRARequest("adapter", 1, "/none") if features.lora else None,
        priority=number,
        block_hasher=hasher,
    )


def _output(features: Features, requests: Sequence[Request]) -> ModelRunnerOutput:
    """Return what a model might answer: a token behind each whole prompt, drafts rejected."""
    ids = [request.request_id for request in requests]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={id_: index for index, id_ in enumerate(ids)},
        sampled_token_ids=[[] if request.is_prefill_chunk else [7] for request in requests],
        logprobs=_logprobs(len(ids)) if features.logprobs else None,
    )


def _logprobs(num_requests: int) -> LogprobsLists:
    shape = (num_requests, _NUM_LOGPROBS + 1)
    return LogprobsLists(
        np.full(shape, 7, dtype=np.int32),
        np.zeros(shape, dtype=np.float32),
        np.ones(num_requests, dtype=np.int32),
    )


ONE_CALL = "one call"
VLLMS = "vLLM's own"


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """The level that an engine reaches: ``natural`` or, if that is refused, the one below it.

    ``manager_level`` is what level ``manager``, the default, comes to.
    """

    level: Level
    why_not_natural: str | None
    manager_level: Level
    why_not_manager: str | None
    why_not_one_call: str | None

    @property
    def is_one_call(self) -> bool:
        """Return whether this package schedules decoding requests, unless a variable forbids it."""
        return self.why_not_one_call is None

    @property
    def scheduler(self) -> str:
        """Return which code schedules decoding requests."""
        return ONE_CALL if self.is_one_call else VLLMS


def reach(model: Model, features: Features, refused: str | None = None) -> Reach:
    """Construct the engine and return how far it gets on a GPU.

    ``refused`` is why level ``natural`` refuses an engine that has more than ``features``. Raises
    ``PlanError`` where vLLM itself refuses the engine.
    """
    with at_level(Level.MANAGER):
        engine = Engine(model, features)
        probe = probed(engine)
        manager = probe.scheduler.kv_cache_manager
        level = Level(getattr(manager, "hybrid_blocks_level", Level.OFF))
        why_not_manager = None
        if level is not Level.MANAGER:
            why_not_manager = grant(Level.MANAGER).reason or _uncovered(engine, probe)
        natural = why_not_manager or grant(Level.NATURAL).reason
        natural = natural or refusal.reason(engine.asked, engine.specs) or refused
        return Reach(
            level=level if natural else Level.NATURAL,
            why_not_natural=natural,
            manager_level=level,
            why_not_manager=why_not_manager,
            why_not_one_call=_one_by_one(probe),
        )


def _uncovered(engine: Engine, probe: Probe) -> str | None:
    native = KVCacheManager.native
    if native is None:
        return None
    return native.unsupported_reason(
        engine.kv_cache_config, metrics_collector=probe.scheduler.kv_metrics_collector
    )


def _one_by_one(probe: Probe) -> str | None:
    reason = scheduler_grant().reason or batching.unsupported_reason(probe.scheduler)
    if reason is None and probe.num_left:
        return sentence("outputs_left")
    return reason


@contextmanager
def at_level(level: Level) -> Iterator[None]:
    """Run at a level, with vLLM's second model runner as on a GPU, and then as before."""
    was_installed = install.is_installed() and KVCacheManager.native is not None
    with environment({VARIABLE: str(level), MODEL_RUNNER: "1"}):
        if not was_installed:
            install.install(level)
        try:
            yield
        finally:
            if not was_installed:
                install.uninstall()
