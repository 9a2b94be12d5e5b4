"""When running requests can be scheduled in one call, and how its results join vLLM's own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import FunctionType
from typing import Any, Final, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from hybrid_blocks._core.vllm import SpecCounts
from hybrid_blocks.reasons import sentence
from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager

REFUSED: Mapping[str, Callable[[Scheduler], bool]] = {
    "not_at_manager": lambda scheduler: (
        not isinstance(scheduler.kv_cache_manager, NativeKVCacheManager)
    ),
    "drafts_by_batch": lambda scheduler: scheduler.dynamic_sd_lookup is not None,
    "samples_other": lambda scheduler: scheduler.num_sampled_tokens_per_step != 1,
    "encoder_decoder": lambda scheduler: scheduler.is_encoder_decoder,
    "encoder_only": lambda scheduler: scheduler.is_mm_encoder_only,
    "aux_connector": lambda scheduler: scheduler.aux_output_connector is not None,
}
"""Conditions that keep an engine's requests from being scheduled in one call.

Any other scheduler schedules in one call: with drafts, images, LoRA, connectors, log
probabilities, structured outputs or pipeline parallelism.
"""


def unsupported_reason(scheduler: Scheduler) -> str | None:
    """Return why an engine's requests are scheduled one by one, or ``None`` if they are not."""
    key = next((key for key, applies in REFUSED.items() if applies(scheduler)), None)
    return sentence(key) if key else foreign_reason(type(scheduler))


@dataclass(frozen=True)
class Rules:
    """How an engine schedules; numbers are tokens unless they say otherwise.

    ``draft_slots`` counts a drafter's slots in a batch, for each request.
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
"""Blocks of a group that a step may take for one request without filling them: a begun one, copies
of shared ones, a checkpoint."""


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
    """Parts of a model's output for requests besides their tokens; ``None`` stands for no part."""

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


_VLLMS: Final = (Scheduler, AsyncScheduler)
_KNOWN: Final = ("vllm", "hybrid_blocks")

MAY_BE_OWN: Final = frozenset(
    {
        # Engines call these: an own method sees whole steps and calls vLLM's.
        *("add_request", "finish_requests", "schedule", "update_from_output", "shutdown"),
        *("has_finished_requests", "has_request", "has_requests", "has_unfinished_requests"),
        *("get_num_unfinished_requests", "get_request_counts", "pause_state", "set_pause_state"),
        *("get_ec_connector", "get_grammar_bitmask", "get_kv_cache_usage", "get_kv_connector"),
        *("get_kv_event_publisher_config", "make_stats", "reset_connector_cache"),
        *("reset_encoder_cache", "reset_prefix_cache", "update_draft_token_ids"),
        "update_draft_token_ids_in_output",
        # vLLM's code alone calls these: for requests that wait, load, are preempted, or end.
        *("_preempt_request", "_free_request", "_free_request_blocks", "_free_blocks"),
        *("_connector_finished", "_enqueue_waiting_request", "_is_blocked_waiting_status"),
        *("_handle_blocked_waiting_request", "_update_waiting_for_remote_kv"),
        *("_update_from_kv_xfer_finished", "_handle_invalid_blocks", "_handle_failed_recving"),
    }
)
"""Methods of vLLM's schedulers that a derived class may have for itself."""


def foreign_reason(scheduler: type) -> str | None:
    """Return why the requests of a scheduler of this class are scheduled one by one, or None."""
    found = sorted({f"{owner.__name__}.{name}" for owner, name in _foreign(scheduler)})
    return sentence("replaced_methods", methods=", ".join(found)) if found else None


def _foreign(scheduler: type) -> Iterator[tuple[type, str]]:
    """Yield the parts that stand for vLLM's, and the class that each is of."""
    # A property may stand for what vLLM keeps in an attribute.
    made = {name for owner in _VLLMS for name in owner.__init__.__code__.co_names}
    names = {name for owner in _VLLMS for name in dir(owner)} | made
    checked = {name for name in names if not name.startswith("__")} - MAY_BE_OWN - {"_abc_impl"}
    for owner in scheduler.__mro__:
        for name in checked & vars(owner).keys():
            if not _is_known(vars(owner)[name]):
                yield owner, name


def _is_known(part: Any) -> bool:
    """Return whether vLLM or this package defines a part."""
    if isinstance(part, property):
        return all(_is_known(it) for it in (part.fget, part.fset, part.fdel) if it is not None)
    function = getattr(part, "__func__", part)
    if isinstance(function, FunctionType):
        # The globals tell where code stands: a wrapper takes on the name of the wrapped function.
        module = str(function.__globals__.get("__name__", ""))
        return module.partition(".")[0] in _KNOWN
    return not callable(function) and not hasattr(function, "__get__")
