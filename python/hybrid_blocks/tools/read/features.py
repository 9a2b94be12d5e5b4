"""A pasted command as the features that ``doctor`` asks about."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.doctor.features import METHODS, Features, Speculative
from hybrid_blocks.tools.read import speculative
from hybrid_blocks.tools.read.arguments import Parsed, read_arguments
from hybrid_blocks.tools.read.command import Command, of_server
from hybrid_blocks.tools.read.level import feature_of, returns_experts
from hybrid_blocks.tools.read.options import shown
from hybrid_blocks.tools.read.vllm_variables import leaves_plugin_out
from hybrid_blocks.tools.read.words import Words, find_server

_UNPLANNED: Final = (
    *("decode_context_parallel_size", "prefill_context_parallel_size", "use_replayssm"),
    *("kv_cache_dtype_skip_layers", "disable_hybrid_kv_cache_manager"),
    *("speculative_config", "spec_method", "spec_model", "spec_tokens"),
)
"""Options that the level of an engine is known with, although not always its plan."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The engine of a command; ``scheduler`` is what it asks for itself.

    Where the engine cannot be planned, ``unplanned`` says why, and ``command`` lacks such options.
    """

    command: Command
    features: Features
    scheduler: str | None
    unplanned: str | None


def read_features(words: Sequence[str], source: str | None = None) -> Asked:
    """Read a pasted command; ``source`` is a model's config beside it, which then counts."""
    found = find_server(words)
    return read_arguments(found.arguments, lambda parsed: _of_server(found, parsed, source))


def _of_server(found: Words, parsed: Parsed, source: str | None) -> Asked:
    options = parsed.values
    if left_out := leaves_plugin_out(found.environment):
        raise PlanError(f"{left_out}; without it the level is off")
    command, unplanned = _planned(found, parsed, source)
    return Asked(
        command=command,
        features=Features(
            speculative=_drafts(options, command.model, parsed.model),
            connector=feature_of(options, found.environment),
            encoder_connector=options.get("ec_transfer_config") is not None,
            lora=bool(options.get("enable_lora")),
            priorities=options.get("scheduling_policy") == "priority",
            tp=options.get("tensor_parallel_size", 0),
            dcp=options.get("decode_context_parallel_size", 1),
            pcp=options.get("prefill_context_parallel_size", 1),
            pp=command.deployment.pp,
            pp_partition=command.deployment.pp_partition,
            residency_metrics=bool(options.get("kv_cache_metrics")),
            flop_metrics=bool(options.get("enable_mfu_metrics")),
            sampling_masks=bool(options.get("return_sampling_mask")),
            aux_outputs=returns_experts(options),
            replay_ssm=bool(options.get("use_replayssm")),
            no_hybrid_manager=bool(options.get("disable_hybrid_kv_cache_manager")),
            spared_layers=tuple(options.get("kv_cache_dtype_skip_layers") or ()),
            prefix_caching=options.get("enable_prefix_caching") is not False,
        ),
        scheduler=options.get("scheduler_cls"),
        unplanned=unplanned,
    )


def _planned(found: Words, parsed: Parsed, source: str | None) -> tuple[Command, str | None]:
    """Return what ``plan`` takes of a command, and why it does not take all, None if it does."""
    rest = {name: value for name, value in parsed.values.items() if name not in _UNPLANNED}
    try:
        return of_server(found, parsed, source), None
    except PlanError as error:
        if rest == parsed.values:
            raise
        why = str(error)
    return of_server(found, Parsed(parsed.model, rest), source), why


def _drafts(options: Mapping[str, Any], model: Model, name: str | None) -> Speculative | None:
    config = speculative.config_of(options)
    method = str(config.get("method") or "")
    if not config or method in {"", "mtp", *speculative.WITHOUT_LAYERS} or method.endswith("_mtp"):
        return speculative.read(options, model, name)
    if method not in METHODS:
        raise PlanError(
            f"--speculative-config method {shown(method)} is not known; known are "
            f"{', '.join(METHODS)}"
        )
    return Speculative(method, speculative.tokens_of(config, None))
