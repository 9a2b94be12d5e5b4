"""Features of engines next to decoding: switched on in both schedulers, drawn for both alike."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from vllm.config import ECTransferConfig, KVTransferConfig, SpeculativeConfig, VllmConfig
from vllm.config.lora import LoRAConfig
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched import scheduler as vllm_scheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, LogprobsLists, ModelRunnerOutput, SamplingMaskLists

from .connector import Connector, loads_with_first_step
from .encoder_connector import EncoderConnector
from .residency import Collector

FEATURES = (
    "lora",
    "images",
    "logprobs",
    "masks",
    "grammar",
    "connector",
    "failed loads",
    "pipeline",
    "v2",
    "eagle",
    "metrics",
    "cadence",
    "nans",
    "encoder",
    "draft model",
    "parallel drafts",
    "wide",
    "adaptive",
    "residency",
)
_REJECTED, _INVALID = 39, 38


class Grammars:
    """Stands for vLLM's manager of grammars: structured outputs hold two tokens never."""

    def accept_tokens(self, request: Any, tokens: list[int]) -> bool:
        return not (request.use_structured_output and _REJECTED in tokens)

    def validate_tokens(self, request: Any, tokens: list[int]) -> list[int]:
        if request.use_structured_output and _INVALID in tokens:
            return tokens[: tokens.index(_INVALID)]
        return tokens


class Flops:
    """Stands for vLLM's ``ModelMetrics``."""

    def is_enabled(self) -> bool:
        return True

    def get_step_perf_stats_per_gpu(self, scheduled: Any) -> Any:
        ids = scheduled.scheduled_cached_reqs.req_ids
        return sum(len(id_) * scheduled.num_scheduled_tokens.get(id_, 0) for id_ in ids)


@contextmanager
def constructed(features: frozenset[str], num_drafts: int, config: VllmConfig) -> Iterator[None]:
    """Let a scheduler be constructed inside with the features."""
    config.lora_config = LoRAConfig(max_loras=2, max_lora_rank=8) if "lora" in features else None
    transfers = KVTransferConfig(
        kv_connector="ExampleConnector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute" if "failed loads" in features else "fail",
    )
    config.kv_transfer_config = transfers if "connector" in features else None
    encoded = ECTransferConfig(ec_connector="ECExampleConnector", ec_role="ec_both")
    config.ec_transfer_config = encoded if "encoder" in features else None
    config.parallel_config.pipeline_parallel_size = 2 if "pipeline" in features else 1
    level = "detailed" if "metrics" in features else "none"
    config.observability_config.per_request_spec_decode_metrics = level  # type: ignore[assignment]
    config.scheduler_config.prefill_schedule_interval = 4 if "cadence" in features else 1
    config.observability_config.kv_cache_metrics = "residency" in features
    config.scheduler_config.long_prefill_token_threshold_adaptive = "adaptive" in features
    if "wide" in features:
        config.scheduler_config.max_num_scheduled_tokens = 1000
    if config.speculative_config is not None:
        # A drafter's own model is not asked for by the scheduler.
        method = "draft_model" if "draft model" in features else "ngram"
        config.speculative_config.method = method  # type: ignore[assignment]
        config.speculative_config.parallel_drafting = "parallel drafts" in features
    with ExitStack() as stack:
        runner = {"VLLM_USE_V2_MODEL_RUNNER": str(int("v2" in features))}
        stack.enter_context(patch.dict(os.environ, runner))
        stack.enter_context(patch.object(KVConnectorFactory, "create_connector", Connector))
        stack.enter_context(patch.object(ECConnectorFactory, "create_connector", EncoderConnector))
        stack.enter_context(patch.object(vllm_scheduler, "KVCacheMetricsCollector", Collector))
        if "eagle" in features:
            for name, count in (
                ("num_lookahead_tokens", num_drafts),
                ("num_prefill_lookahead_tokens", 1),
            ):
                stack.enter_context(patch.object(VllmConfig, name, count))
            for name in ("use_eagle", "use_eagle_block_drop"):
                stack.enter_context(patch.object(SpeculativeConfig, name, lambda _self: True))
        yield


def equip(scheduler: Any, features: frozenset[str]) -> None:
    """Give a scheduler what it was not constructed with."""
    scheduler.structured_output_manager = Grammars()
    if "images" in features:
        scheduler.max_num_encoder_input_tokens = 24
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=48)
    if "metrics" in features:
        scheduler.perf_metrics = Flops()
    scheduler.return_sampling_mask = "masks" in features


def draw_request(features: frozenset[str], draw: Random, num_prompt: int) -> dict[str, Any]:
    """Draw what a request asks for beside tokens: arguments of it and, apart, of its sampling."""
    about: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    if "lora" in features and draw.random() < 0.7:
        number = draw.randrange(1, 4)
        about["lora_request"] = LoRARequest(f"lora{number}", number, "/nowhere")
    if "images" in features and num_prompt > 12 and draw.random() < 0.6:
        spots = sorted(draw.sample(range(num_prompt - 6), k=2))
        ends = [min(spots[0] + 6, spots[1]), spots[1] + 6]
        about["mm_features"] = [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=f"image{draw.randrange(30)}-{end - start}",
                mm_position=PlaceholderRange(offset=start, length=end - start),
            )
            for start, end in zip(spots, ends, strict=True)
        ]
    if "logprobs" in features and draw.random() < 0.6:
        sampling["logprobs"] = 2
    if "grammar" in features and draw.random() < 0.4:
        sampling["structured_outputs"] = StructuredOutputsParams(regex="a")
    return {"about": about, "sampling": sampling}


def said_beside(
    features: frozenset[str],
    draw: Random,
    scheduler: Any,
    step: SchedulerOutput,
    sampled: dict[str, list[int]],
) -> dict[str, Any]:
    """Draw what a model says of a step beside its tokens."""
    said: dict[str, Any] = {}
    lengths = [len(tokens) for tokens in sampled.values()]
    starts = np.cumsum([0, *lengths]).tolist()
    total = max(starts[-1], 1)
    if "logprobs" in features and draw.random() < 0.9:
        ids = np.arange(total * 3).reshape(total, 3)
        said["logprobs"] = LogprobsLists(ids, ids / 7, np.arange(total), starts)
        said["prompt_logprobs_dict"] = {
            id_: f"prompt of {id_}"
            for id_, tokens in sampled.items()
            if tokens and draw.random() < 0.2
        }
    if "masks" in features:
        # vLLM 0.31 finds a request's mask by the request's place, whatever the others sampled.
        positions = max(total, len(sampled))
        said["sampling_masks"] = SamplingMaskLists(
            np.arange(positions * 2), np.arange(positions + 1) * 2, starts
        )
    if "nans" in features:
        said["num_nans_in_logits"] = {id_: 1 for id_ in sampled if draw.random() < 0.1}
    if "connector" in features:
        connector = scheduler.connector
        loading = sorted(connector.loading - connector.reported)
        received = {id_ for id_ in loading if draw.random() < 0.4}
        sending = sorted(connector.sending - connector.reported)
        sent = {id_ for id_ in sending if draw.random() < 0.4}
        connector.reported |= received | sent
        failed = {id_ for id_ in sorted(received) if draw.random() < 0.1}
        said["kv_connector_output"] = KVConnectorOutput(
            finished_recving=received,
            finished_sending=sent,
            failed_recving=failed,
            invalid_block_ids=_not_loaded(draw, step) if "failed loads" in features else set(),
        )
    return said


def _not_loaded(draw: Random, step: SchedulerOutput) -> set[int]:
    """Draw blocks that a connector could not fill before a step."""
    loads = [
        new.block_ids[0] for new in step.scheduled_new_reqs if loads_with_first_step(new.req_id)
    ]
    return {draw.choice(blocks[:2]) for blocks in loads if draw.random() < 0.5}


def settle(scheduler: Any, output: ModelRunnerOutput) -> None:
    """Let a scheduler's connector know of what is done."""
    done = output.kv_connector_output
    if done is not None:
        scheduler.connector.loading -= done.finished_recving
        scheduler.connector.sending -= done.finished_sending
