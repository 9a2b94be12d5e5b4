"""The level that a command asks for, and what keeps its engine from it: mostly KV connectors."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hybrid_blocks import variables
from hybrid_blocks.connector import Connector
from hybrid_blocks.model import PlanError
from hybrid_blocks.reasons import first
from hybrid_blocks.tools.read import speculative
from hybrid_blocks.tools.read.options import shown
from hybrid_blocks.tools.read.vllm_variables import SIMPLE_OFFLOAD, is_on

LEVELS: Final = ("off", "pool", "manager", "natural")
_OFFLOADING: Final = {"native": "OffloadingConnector", "lmcache": "LMCacheMPConnector"}


class Refusal(msgspec.Struct, frozen=True):
    """Why an engine does not reach level ``natural``, and a variable that helps, if one does."""

    reason: str
    remedy: str | None = None


def level_of(environment: Mapping[str, str]) -> str | None:
    """Return the value of ``HYBRID_BLOCKS``, None where it is not set or empty."""
    level = environment.get(variables.LEVEL.name) or None
    if level is not None and level not in LEVELS:
        raise PlanError(f"HYBRID_BLOCKS={shown(level)} names no level; use {', '.join(LEVELS)}")
    return level


def refusal_of(options: Mapping[str, Any], environment: Mapping[str, str]) -> Refusal | None:
    """Return which option keeps an engine from level ``natural``, None where none does."""
    refused = {
        "aux_outputs": returns_experts(options),
        "residency_metrics": options.get("kv_cache_metrics"),
        "no_hybrid_manager": options.get("disable_hybrid_kv_cache_manager"),
    }
    if reason := first(refused):
        return Refusal(reason)
    connector = connector_of(options, environment)
    if connector is None:
        return None
    drafts = bool(speculative.config_of(options))
    pp = options.get("pipeline_parallel_size", 1)
    why = connector.refused(environment, drafts=drafts, pp=pp)
    if why is None:
        return None
    with_ours = {**environment, variables.OFFLOAD.name: "1"}
    helps = connector.refused(with_ours, drafts=drafts, pp=pp) is None
    return Refusal(why, f"{variables.OFFLOAD.name}=1" if helps else None)


def returns_experts(options: Mapping[str, Any]) -> bool:
    """Return whether the engine has auxiliary outputs."""
    config = options.get("aux_output_config")
    of_config = config.get("enable_return_routed_experts") if isinstance(config, dict) else False
    return bool(options.get("enable_return_routed_experts") or of_config)


def figures_of(level: str | None, refusal: Refusal | None) -> str:
    """Say whose figures a command gets that asks for a level."""
    asked = f"HYBRID_BLOCKS is {level or 'not set'}: this command gets the figures of vLLM; "
    if refusal is None:
        if level == "natural":
            return "HYBRID_BLOCKS=natural: this command gets the figures of natural"
        return f"{asked}with HYBRID_BLOCKS=natural it gets those of natural"
    if level == "natural":
        sentence = (
            f"HYBRID_BLOCKS=natural reaches level manager here, because of {refusal.reason}: this "
            "command gets the figures of vLLM"
        )
        return (
            f"{sentence}; add {refusal.remedy} to stay at natural" if refusal.remedy else sentence
        )
    if refusal.remedy:
        return (
            f"{asked}because of {refusal.reason}, only HYBRID_BLOCKS=natural {refusal.remedy} gets "
            "those of natural"
        )
    return f"{asked}HYBRID_BLOCKS=natural reaches level manager, because of {refusal.reason}"


def connector_of(options: Mapping[str, Any], environment: Mapping[str, str]) -> Connector | None:
    """Return the connector that vLLM's options configure, None without one.

    As in vLLM, ``--kv-offloading-size`` replaces the name of another one.
    """
    config = options.get("kv_transfer_config")
    fields = config if isinstance(config, dict) else {}
    name = fields.get("kv_connector")
    if options.get("kv_offloading_size") is not None:
        name = _OFFLOADING.get(options.get("kv_offloading_backend", "native"))
        if name == _OFFLOADING["native"] and is_on(environment, SIMPLE_OFFLOAD):
            name = "SimpleCPUOffloadConnector"
    if not name:
        return None
    module, extra = fields.get("kv_connector_module_path"), fields.get("kv_connector_extra_config")
    return Connector(str(name), module, extra if isinstance(extra, dict) else {})


def feature_of(options: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the name that ``doctor`` has for the connector: this package's, or its own.

    Of a list that level ``natural`` refuses it is the name of a connector that it refuses.
    """
    connector = connector_of(options, environment)
    if connector is None:
        return None
    if connector.refused(environment) is not None:
        refused = (it for it in connector.listed if it.refused(environment))
        first = next(refused, connector) if connector.weighs else connector
        return "NixlConnector" if first.pulls else first.name
    if connector.weighs and any(it.pulls for it in connector.listed):
        return "HybridMultiConnector"
    return "HybridNixlConnector" if connector.pulls else "HybridOffloadingConnector"
