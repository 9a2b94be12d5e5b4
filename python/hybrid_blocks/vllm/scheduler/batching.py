"""When running requests can be scheduled in one call, and how its results join vLLM's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from hybrid_blocks._core.vllm import SpecCounts
from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from hybrid_blocks.vllm.scheduler import foreign_parts

REFUSED: Mapping[str, Callable[[Scheduler], bool]] = {
    "the block manager is not at level manager": lambda scheduler: (
        not isinstance(scheduler.kv_cache_manager, NativeKVCacheManager)
    ),
    "as many drafts as the size of the batch allows": lambda scheduler: (
        scheduler.dynamic_sd_lookup is not None
    ),
    "no token is sampled": lambda scheduler: scheduler.num_sampled_tokens_per_step != 1,
    "encoder and decoder": lambda scheduler: scheduler.is_encoder_decoder,
    "encoder only": lambda scheduler: scheduler.is_mm_encoder_only,
    "auxiliary outputs": lambda scheduler: scheduler.aux_output_connector is not None,
}
"""What keeps an engine's requests from being scheduled in one call, and how to tell.

A scheduler that none of these is true of schedules in one call whatever else is enabled: drafts,
images, LoRA, connectors, log probabilities, structured outputs, pipeline parallelism.
"""


def unsupported_reason(scheduler: Scheduler) -> str | None:
    """Return why an engine's requests are scheduled one by one, or ``None`` if they are not."""
    reason = next((reason for reason, is_so in REFUSED.items() if is_so(scheduler)), None)
    return reason or foreign_parts.reason(type(scheduler))


@dataclass(frozen=True)
class Rules:
    """How an engine schedules; numbers are tokens unless they say otherwise.

    ``draft_slots`` are those that a drafter takes in a batch beside each request's tokens.
    ``decode_stagger`` is in steps, 0 where nothing is to be kept apart. ``takes_back_trimmed`` and
    ``commits_outputs`` say what a release of vLLM does with an output.
    """

    max_model_len: int
    num_lookahead_tokens: int
    num_spec_tokens: int
    draft_slots: int
    long_prefill_token_threshold: int
    decode_stagger: int
    is_async: bool
    sends_tokens: bool
    takes_back_trimmed: bool
    commits_outputs: bool
    detailed_spec_metrics: bool


def rules_of(scheduler: Any, *, is_async: bool) -> Rules:
    """Return how a scheduler schedules."""
    release = releases.installed
    drafts = scheduler.vllm_config.speculative_config
    staggers = is_async and scheduler.use_v2_model_runner
    return Rules(
        max_model_len=scheduler.max_model_len,
        num_lookahead_tokens=scheduler.num_lookahead_tokens,
        num_spec_tokens=scheduler.num_spec_tokens,
        draft_slots=0 if drafts is None else drafts.max_num_new_slots_for_drafting,
        long_prefill_token_threshold=scheduler.scheduler_config.long_prefill_token_threshold,
        decode_stagger=scheduler.decode_stagger if staggers else 0,
        is_async=is_async,
        # Asynchronously, workers hand sampled tokens on to each other.
        sends_tokens=scheduler.use_pp and not scheduler.scheduler_config.async_scheduling,
        takes_back_trimmed=release.takes_back_trimmed,
        commits_outputs=release.commits_drafts and scheduler.num_spec_tokens > 0,
        detailed_spec_metrics=scheduler.spec_decode_metrics_level == "detailed",
    )


def limits_inputs(scheduler: Any, rules: Rules) -> bool:
    """Return whether the slots of a batch may run out before a step's tokens do."""
    num_slots: int = scheduler.scheduler_config.max_num_batched_tokens
    return rules.draft_slots > 0 or scheduler.max_num_scheduled_tokens > num_slots


_BLOCKS_BESIDE_TOKENS = 4
"""Blocks that a step may take from a group for one request beside those its tokens fill: one begun,
copies of shared ones, a checkpoint."""


def fits_for_sure(scheduler: Scheduler) -> bool:
    """Return whether a step cannot run out of blocks, however its tokens are distributed.

    By priority, a request that finds no room takes it from any other, those scheduled before it in
    the same step included.
    """
    manager: Any = scheduler.kv_cache_manager
    num_running = len(scheduler.running)
    tokens = scheduler.max_num_scheduled_tokens + scheduler.num_lookahead_tokens * num_running
    # A state keeps a block for each draft.
    beside = (_BLOCKS_BESIDE_TOKENS + scheduler.num_spec_tokens) * num_running
    needed = [tokens // size + beside for size in manager.coordinator.group_block_sizes]
    units: list[int] = manager.num_units(needed)
    num_free: int = manager.block_pool.get_num_free_blocks()
    return sum(units) <= num_free


def copied(output: SchedulerOutput) -> SchedulerOutput:
    """Return a shallow copy; ``copy.copy`` takes ten times as long."""
    copy = object.__new__(type(output))
    vars(copy).update(vars(output))
    return copy


def last(scheduled: dict[str, int], count: int) -> dict[str, int]:
    """Return that many entries, the last in their order, without a look at those before."""
    if not count:
        return {}
    return dict(reversed([*islice(reversed(scheduled.items()), count)]))


class Extras(NamedTuple):
    """Parts of a model's output for requests beside their tokens; ``None`` stands for nothing."""

    spec_tokens: dict[str, list[int]]
    num_invalid: dict[str, int] | None
    logprobs: Any
    sampling_masks: Any
    prompt_logprobs: dict[str, Any] | None
    prompt_token_logprobs: dict[str, Any] | None
    num_nans: dict[str, int] | None


def extras_of(
    scheduler: Scheduler, scheduled: SchedulerOutput, output: ModelRunnerOutput
) -> Extras:
    """Return the request data of a step's output."""
    return Extras(
        spec_tokens=scheduled.scheduled_spec_decode_tokens,
        num_invalid=scheduled.num_invalid_spec_tokens or None,
        logprobs=output.logprobs or None,
        sampling_masks=output.sampling_masks if scheduler.return_sampling_mask else None,
        prompt_logprobs=output.prompt_logprobs_dict or None,
        prompt_token_logprobs=output.prompt_token_id_logprobs_dict or None,
        num_nans=output.num_nans_in_logits or None,
    )


def can_be_taken(output: ModelRunnerOutput) -> bool:
    """Return whether requests got tokens and no other part decides which of them count."""
    loaded = output.kv_connector_output
    failed = loaded is not None and (loaded.failed_recving or loaded.invalid_block_ids)
    others = output.pooler_output or output.aux_output_connector_output
    return bool(output.sampled_token_ids) and not others and not failed


def total(counts: SpecCounts | None, stats: SpecDecodingStats | None) -> SpecDecodingStats | None:
    """Add what became of drafts in one call to what vLLM's code counted."""
    if counts is None or not counts.num_drafts:
        return stats
    stats = stats or SpecDecodingStats.new(len(counts.num_draft_tokens_per_pos))
    stats.num_drafts += counts.num_drafts
    stats.num_draft_tokens += counts.num_draft_tokens
    stats.num_accepted_tokens += counts.num_accepted_tokens
    for theirs, ours in (
        (stats.num_accepted_tokens_per_pos, counts.num_accepted_tokens_per_pos),
        (stats.num_draft_tokens_per_pos, counts.num_draft_tokens_per_pos),
    ):
        theirs[:] = [first + second for first, second in zip(theirs, ours, strict=True)]
    return stats


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
