"""When running requests can be scheduled in one call, and how its results join vLLM's own."""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput

from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.native_manager import NativeKVCacheManager


def unsupported_reason(scheduler: Scheduler) -> str | None:
    """Return why an engine's requests are scheduled one by one, or ``None`` if they are not."""
    config = scheduler.scheduler_config
    unsupported = {
        "the block manager is not at level manager": not isinstance(
            scheduler.kv_cache_manager, NativeKVCacheManager
        ),
        "KV connector": scheduler.connector is not None,
        "encoder cache connector": scheduler.ec_connector is not None,
        "LoRA": scheduler.lora_config is not None,
        "speculative decoding": scheduler.vllm_config.speculative_config is not None,
        "pipeline parallelism": scheduler.use_pp,
        "no token is sampled": scheduler.num_sampled_tokens_per_step != 1,
        "encoder and decoder": scheduler.is_encoder_decoder,
        "encoder only": scheduler.is_mm_encoder_only,
        "sampling masks": scheduler.return_sampling_mask,
        "FLOP metrics": scheduler.perf_metrics is not None,
        "more tokens a step than a batch holds": (
            scheduler.max_num_scheduled_tokens > config.max_num_batched_tokens
        ),
        **releases.installed.only_one_by_one(scheduler),
    }
    return next((reason for reason, is_so in unsupported.items() if is_so), None)


_BLOCKS_BESIDE_TOKENS = 4
"""Blocks that a step may take from a group for one request beside those its tokens fill: one begun,
copies of shared ones, a checkpoint."""


def fits_for_sure(scheduler: Scheduler) -> bool:
    """Return whether a step cannot run out of blocks, however its tokens are distributed.

    By priority, a request that finds no room takes it from any other, those scheduled before it in
    the same step included.
    """
    manager: Any = scheduler.kv_cache_manager
    tokens = scheduler.max_num_scheduled_tokens
    needed = [
        tokens // size + _BLOCKS_BESIDE_TOKENS * len(scheduler.running)
        for size in manager.coordinator.group_block_sizes
    ]
    units: list[int] = manager.num_units(needed)
    num_free: int = manager.block_pool.get_num_free_blocks()
    return sum(units) <= num_free


def is_plain(scheduled: SchedulerOutput, output: ModelRunnerOutput) -> bool:
    """Return whether a model's output says nothing of requests but which tokens were sampled."""
    return bool(output.sampled_token_ids) and not (
        scheduled.scheduled_spec_decode_tokens
        or output.logprobs
        or output.prompt_logprobs_dict
        or output.prompt_token_id_logprobs_dict
        or output.pooler_output
        or output.num_nans_in_logits
        or output.kv_connector_output
        or output.ec_connector_output
    )


def join(
    first: Mapping[int, list[EngineCoreOutput]], following: dict[int, EngineCoreOutputs]
) -> dict[int, EngineCoreOutputs]:
    """Put outputs in front of those by client that follow them; the first client gets the stats."""
    if not first:
        return following
    joined = {client: EngineCoreOutputs(outputs=outputs) for client, outputs in first.items()}
    stats: Any = None
    for client, after in following.items():
        stats = stats or after.scheduler_stats
        after.scheduler_stats = None
        before = joined.get(client)
        if before is not None:
            before.outputs.extend(after.outputs)
            before.finished_requests = after.finished_requests
        elif after.outputs or after.finished_requests:
            joined[client] = after
    next(iter(joined.values())).scheduler_stats = stats
    return joined
