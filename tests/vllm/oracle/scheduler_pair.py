"""Two schedulers through the same life of requests: vLLM's own, and this package's."""

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from hybrid_blocks.tools.profile.loop import fingerprint_schedule
from hybrid_blocks.vllm.scheduler import one_call as batched
from hybrid_blocks.weightless import make_scheduler, model_config
from installed import installed
from vllm.config import CacheConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from . import features as beside
from .engines import Engine

EOS, STOP = 1, 2


@dataclass(frozen=True)
class Setup:
    """An engine and how it schedules."""

    engine: Engine
    is_async: bool
    policy: str = "fcfs"
    max_num_seqs: int = 6
    max_num_batched_tokens: int = 64
    long_prefill_token_threshold: int = 0
    num_drafts: int = 0
    log_stats: bool = True
    features: frozenset[str] = frozenset()

    @property
    def num_steps_ahead(self) -> int:
        """How many steps are scheduled before the outputs of one are there."""
        return int(self.is_async) + int("pipeline" in self.features)

    def config(self) -> VllmConfig:
        config = _config(self.num_drafts)
        cache = config.cache_config
        cache.block_size = self.engine.scheduler_block_size
        cache.enable_prefix_caching = self.engine.enable_caching
        cache.mamba_cache_mode = "align" if self.engine.has_aligned_state else "none"
        cache.num_gpu_blocks = self.engine.num_blocks
        config.model_config.max_model_len = self.engine.max_model_len
        schedule = config.scheduler_config
        schedule.async_scheduling = self.is_async  # not where vLLM checks it
        schedule.max_num_seqs = self.max_num_seqs
        schedule.max_num_batched_tokens = self.max_num_batched_tokens
        schedule.max_num_scheduled_tokens = self.max_num_batched_tokens
        schedule.long_prefill_token_threshold = self.long_prefill_token_threshold
        schedule.policy = self.policy  # type: ignore[assignment]
        return config


@cache
def _config(num_drafts: int) -> VllmConfig:
    with model_config({"vocab_size": 128}, max_model_len=4096, dtype="float16") as model:
        drafts = None
        if num_drafts:
            drafts = SpeculativeConfig(method="ngram", num_speculative_tokens=num_drafts)
        return VllmConfig(
            model_config=model,
            cache_config=CacheConfig(block_size=16, enable_prefix_caching=True),
            speculative_config=drafts,
            scheduler_config=SchedulerConfig(
                max_num_seqs=6,
                max_num_batched_tokens=4096,
                max_model_len=4096,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
        )


def _scheduler(cls: type[Scheduler], setup: Setup) -> Any:
    config = setup.config()
    config.scheduler_config.scheduler_cls = cls
    with beside.constructed(setup.features, setup.num_drafts, config):
        scheduler: Any = make_scheduler(
            cls,
            config,
            setup.engine.config(),
            block_size=setup.engine.scheduler_block_size,
            hash_block_size=setup.engine.hash_block_size,
            log_stats=setup.log_stats,
        )
    beside.equip(scheduler, setup.features)
    return scheduler


def make_ours(setup: Setup, cls: type[Scheduler] = batched.Scheduler) -> Any:
    """Return this package's scheduler over the block manager of the requested level."""
    with installed():
        return _scheduler(cls, setup)


@dataclass
class Pair:
    """Whatever is done is done to both, and what can be seen afterwards is compared."""

    setup: Setup
    random: Random
    ours_class: type[Scheduler] = batched.Scheduler
    in_flight: deque[list[tuple[SchedulerOutput, ModelRunnerOutput]]] = field(default_factory=deque)
    num_requests: int = 0

    def __post_init__(self) -> None:
        init_none_hash(sha256)
        theirs = _scheduler(AsyncScheduler if self.setup.is_async else Scheduler, self.setup)
        self.schedulers = (theirs, make_ours(self.setup, self.ours_class))
        self.hashers = [self._hasher(scheduler) for scheduler in self.schedulers]

    @property
    def ours(self) -> Any:
        return self.schedulers[1]

    def arrive(self, max_tokens: int | None = None, prompt: list[int] | None = None) -> None:
        """A request arrives that may share a prefix; what is not given is drawn."""
        draw = self.random
        shared = Random(draw.randrange(2)).choices(range(5, 100), k=120)
        prompt = prompt or shared[: draw.choice((0, 16, 31, 48, 64))] + draw.choices(
            range(5, 100), k=draw.choice((1, 2, 5, 16, 17, 40))
        )
        options: dict[str, Any] = {"max_tokens": max_tokens or draw.choice((1, 2, 6, 12, 30, 60))}
        if draw.random() < 0.3:
            options["stop_token_ids"] = [STOP, STOP + 1]
        if draw.random() < 0.1:
            options["repetition_detection"] = RepetitionDetectionParams(
                max_pattern_size=2, min_count=2
            )
        about: dict[str, Any] = {
            "request_id": f"request{self.num_requests}",
            "prompt_token_ids": prompt[: self.setup.engine.max_model_len - 8],
            "pooling_params": None,
            "priority": draw.randrange(3),
            "client_index": draw.randrange(2),
            "arrival_time": float(self.num_requests),
            "trace_headers": {"trace": "1"} if draw.random() < 0.1 else None,
        }
        drawn = beside.draw_request(self.setup.features, draw, len(about["prompt_token_ids"]))
        about |= drawn["about"]
        options |= drawn["sampling"]
        stops_at_eos = draw.random() < 0.5
        for scheduler, hasher in zip(self.schedulers, self.hashers, strict=True):
            sampling = SamplingParams(**options)
            if stops_at_eos:
                sampling.update_from_generation_config({}, EOS)
            request = Request(**about, sampling_params=sampling, block_hasher=hasher)
            if request.structured_output_request is not None:
                request.structured_output_request.grammar = object()  # type: ignore[assignment]
            scheduler.add_request(request)
        self.num_requests += 1

    def _hasher(self, scheduler: Any) -> Any:
        # vLLM 0.32 knows of no tokens after a block that its hash covers.
        ahead = getattr(scheduler.kv_cache_manager.block_pool, "num_hash_lookahead_tokens", 0)
        size = self.setup.engine.hash_block_size
        return get_request_block_hasher(size, sha256, *([ahead] if ahead else []))

    def step(self) -> None:
        """Schedule, and take in the outputs of this step or, if asynchronous, of the last one."""
        outputs = [scheduler.schedule() for scheduler in self.schedulers]
        told = [fingerprint_schedule(output) for output in outputs]
        assert told[0] == told[1]
        sampled = self._sample(outputs[0])
        said = beside.said_beside(
            self.setup.features, self.random, self.schedulers[0], outputs[0], sampled
        )
        if self.setup.num_drafts and self.setup.is_async:
            self._draft_in_flight(outputs)
        self.in_flight.append([(output, ran(output, sampled, said)) for output in outputs])
        self.take_in(but=self.setup.num_steps_ahead)
        if self.setup.num_drafts and not self.setup.is_async:
            self._draft()
        self.compare()

    def take_in(self, *, but: int = 0) -> None:
        """The outputs of all steps in flight arrive, but those of the last ones."""
        while len(self.in_flight) > but:
            self._take(self.in_flight.popleft())

    def _draft_in_flight(self, outputs: list[SchedulerOutput]) -> None:
        """Say which drafts stood behind the placeholders of a step, as for grammars."""
        if self.random.random() < 0.5:
            return
        ids = list(outputs[0].scheduled_spec_decode_tokens)
        drafts = [self.random.choices(range(30, 40), k=self.setup.num_drafts) for _ in ids]
        for scheduler, output in zip(self.schedulers, outputs, strict=True):
            scheduler.update_draft_token_ids_in_output(
                DraftTokenIds(ids, [list(one) for one in drafts]), output
            )

    def _sample(self, output: SchedulerOutput) -> dict[str, list[int]]:
        theirs = self.schedulers[0]
        draw = self.random
        sampled: dict[str, list[int]] = {}
        for request_id, count in output.num_scheduled_tokens.items():
            drafts = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
            request = theirs.requests[request_id]
            reached = request.num_computed_tokens - drafts
            if request.is_prefill_chunk or reached < request.num_tokens or not count:
                sampled[request_id] = []
            else:
                accepted = draw.randint(0, drafts)
                sampled[request_id] = draw.choices(range(40), k=1 + accepted)
        return sampled

    def _draft(self) -> None:
        ids = [request.request_id for request in self.schedulers[0].running]
        drafts = [self.random.choices(range(5, 40), k=self.setup.num_drafts) for _ in ids]
        for scheduler in self.schedulers:
            scheduler.update_draft_token_ids(DraftTokenIds(ids, [list(one) for one in drafts]))

    def _take(self, step: list[tuple[SchedulerOutput, ModelRunnerOutput]]) -> None:
        told = [
            scheduler.update_from_output(*outputs)
            for scheduler, outputs in zip(self.schedulers, step, strict=True)
        ]
        assert _of_clients(told[0]) == _of_clients(told[1])
        for scheduler, (_, output) in zip(self.schedulers, step, strict=True):
            beside.settle(scheduler, output)

    def abort(self) -> None:
        """A client goes away."""
        ids = sorted(self.schedulers[0].requests)
        if ids:
            gone = self.random.choice(ids)
            for scheduler in self.schedulers:
                scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)

    def reset(self) -> None:
        """The prefix cache is dropped, and running requests start again."""
        running = self.random.random() < 0.5
        for scheduler in self.schedulers:
            scheduler.reset_prefix_cache(reset_running_requests=running)

    def pause(self) -> None:
        """Nothing, or nothing new, is scheduled until it goes on."""
        state = self.random.choice((PauseState.PAUSED_ALL, PauseState.PAUSED_NEW))
        if self.ours.pause_state != PauseState.UNPAUSED:
            state = PauseState.UNPAUSED
        for scheduler in self.schedulers:
            scheduler.set_pause_state(state)

    def run(self, actions: list[str]) -> None:
        for action in actions:
            getattr(self, action)()

    def compare(self) -> None:
        """All that the schedulers hold is equal."""
        theirs, ours = map(_state, self.schedulers)
        for name, expected in theirs.items():
            assert ours[name] == expected, name


def ran(
    output: SchedulerOutput, sampled: dict[str, list[int]], said: dict[str, Any]
) -> ModelRunnerOutput:
    """Return what a model says of a step: tokens by request, and ``said`` beside them."""
    ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=[list(sampled[request_id]) for request_id in ids],
        **said,
    )


def _of_clients(told: dict[int, Any]) -> list[Any]:
    said = []
    for client, outputs in told.items():
        fields = {name: getattr(outputs, name) for name in outputs.__struct_fields__}
        del fields["timestamp"]
        fields["scheduler_stats"] = str(fields["scheduler_stats"])
        fields["outputs"] = [_of_request(output) for output in outputs.outputs]
        said.append((client, fields))
    return said


def _of_request(output: Any) -> dict[str, Any]:
    fields = {name: getattr(output, name) for name in output.__struct_fields__}
    if output.events is not None:
        fields["events"] = [event.type for event in output.events]
    for name in ("prefill_stats", "new_logprobs", "new_sampling_mask", "spec_decode_metrics"):
        fields[name] = str(fields[name])
    return fields


_REQUEST = (
    "status",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_output_placeholders",
    "num_stale_output_tokens",
    "is_prefill_chunk",
    "spec_token_ids",
    "num_preemptions",
    "block_hashes",
    "_all_token_ids",
    "_output_token_ids",
    "stop_reason",
    "last_sched_seq",
    "next_decode_eligible_step",
    "num_nans_in_logits",
)


def _state(scheduler: Any) -> dict[str, Any]:
    manager = scheduler.kv_cache_manager
    return {
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting],
        "counts": scheduler.get_request_counts(),
        "unfinished": scheduler.get_num_unfinished_requests(),
        "finished": scheduler.finished_req_ids,
        "requests": {
            request_id: {name: getattr(request, name) for name in _REQUEST}
            for request_id, request in scheduler.requests.items()
        },
        "tables": {
            request_id: manager.get_block_ids(request_id) for request_id in scheduler.requests
        },
        "free": [
            block.block_id for block in manager.block_pool.free_block_queue.get_all_free_blocks()
        ],
        "limits": (scheduler.max_num_scheduled_tokens, scheduler.max_num_active_reqs),
        "previous": scheduler.prev_step_scheduled_req_ids,
        "holding": [request.request_id for request in scheduler.kv_holding_waiting],
        "inflight": {request.request_id for request in scheduler._inflight_prefills},
        "residency": (collector := scheduler.kv_metrics_collector) and collector.calls,
        "fences": (scheduler.sched_step_seq, scheduler.processed_step_seq),
        "deferred": [
            # Places without a block are nothing to be freed; 0.32's manager lists them.
            (fence, [block.block_id for block in blocks if not block.is_null])
            for fence, blocks in scheduler.deferred_frees
        ],
        "cached inputs": _cached_inputs(scheduler),
        "cadence": (getattr(scheduler, "last_prefill_step", 0), scheduler.prefill_capacity_bound),
        "steps": (scheduler.current_step, getattr(scheduler, "num_executed_steps", 0)),
    }


def _cached_inputs(scheduler: Any) -> Any:
    cache = scheduler.encoder_cache_manager
    return (cache.num_free_slots, cache.cached, list(cache.freeable), cache.freed)
