"""A pasted command as the features that ``doctor`` asks about."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.doctor.features import METHODS, Features, Speculative
from hybrid_blocks.tools.read import speculative
from hybrid_blocks.tools.read.arguments import Parsed, read_arguments
from hybrid_blocks.tools.read.command import find_model
from hybrid_blocks.tools.read.level import feature_of, level_of
from hybrid_blocks.tools.read.options import shown
from hybrid_blocks.tools.read.vllm_variables import leaves_plugin_out, partition_of
from hybrid_blocks.tools.read.words import Words, find_server


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The engine of a command; ``level`` and ``scheduler`` are what it asks for itself."""

    model: Model
    features: Features
    level: str | None
    scheduler: str | None


def read_features(words: Sequence[str], source: str | None = None) -> Asked:
    """Read a pasted command; ``source`` is a model's config beside it, which then counts."""
    found = find_server(words)
    return read_arguments(found.arguments, lambda parsed: _of_server(found, parsed, source))


def _of_server(found: Words, parsed: Parsed, source: str | None) -> Asked:
    options = parsed.values
    if left_out := leaves_plugin_out(found.environment):
        raise PlanError(f"{left_out}; without it the level is off")
    name = source or options.get("hf_config_path") or parsed.model
    if name is None:
        raise PlanError("the command names no model: vllm serve MODEL …")
    overrides = options.get("hf_overrides")
    model = find_model(name, overrides if isinstance(overrides, dict) else None)
    return Asked(
        model=model,
        features=Features(
            speculative=_drafts(options, model, parsed.model),
            connector=feature_of(options, found.environment),
            encoder_connector=options.get("ec_transfer_config") is not None,
            lora=bool(options.get("enable_lora")),
            priorities=options.get("scheduling_policy") == "priority",
            tp=options.get("tensor_parallel_size", 0),
            dcp=options.get("decode_context_parallel_size", 1),
            pcp=options.get("prefill_context_parallel_size", 1),
            pp=options.get("pipeline_parallel_size", 1),
            pp_partition=partition_of(found.environment),
            residency_metrics=bool(options.get("kv_cache_metrics")),
            flop_metrics=bool(options.get("enable_mfu_metrics")),
            sampling_masks=bool(options.get("return_sampling_mask")),
            prefix_caching=options.get("enable_prefix_caching") is not False,
        ),
        level=level_of(found.environment),
        scheduler=options.get("scheduler_cls"),
    )


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
