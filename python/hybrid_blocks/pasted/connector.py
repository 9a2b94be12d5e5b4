"""The KV connector of a command, and the level that an engine reaches with it."""

from collections.abc import Mapping
from typing import Any, Final

from hybrid_blocks.plan.connector import REPLACES_SPEC, Connector

_OFFLOADING: Final = {"native": "OffloadingConnector", "lmcache": "LMCacheMPConnector"}


def connector_of(options: Mapping[str, Any]) -> Connector | None:
    """Return the connector that vLLM's options configure, None without one.

    As in vLLM, ``--kv-offloading-size`` replaces the name of another one.
    """
    config = options.get("kv_transfer_config")
    fields = config if isinstance(config, dict) else {}
    name = fields.get("kv_connector")
    if options.get("kv_offloading_size") is not None:
        name = _OFFLOADING.get(options.get("kv_offloading_backend", "native"))
    if not name:
        return None
    module, extra = fields.get("kv_connector_module_path"), fields.get("kv_connector_extra_config")
    return Connector(str(name), module, extra if isinstance(extra, dict) else {})


def feature_of(options: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the name that ``doctor`` has for the connector: this package's, or its own."""
    connector = connector_of(options)
    if connector is None:
        return None
    return connector.name if connector.refused(environment) else "HybridOffloadingConnector"


def figures_of(
    level: str | None, connector: Connector | None, environment: Mapping[str, str]
) -> str:
    """Say whose figures a command gets that asks for a level."""
    asked = level or "not set"
    reason = None if connector is None else connector.refused(environment)
    if reason is None:
        if level != "natural":
            return (
                f"HYBRID_BLOCKS is {asked}: this command gets the figures of vLLM; with "
                "HYBRID_BLOCKS=natural it gets those of natural"
            )
        served = "" if connector is None else f" with the KV connector {connector.name}"
        return f"HYBRID_BLOCKS=natural{served}: this command gets the figures of natural"
    remedy = ""
    if connector is not None and connector.has_stock_spec:
        stays = {**environment, REPLACES_SPEC: "1"}
        if connector.refused(stays) is None:
            remedy = f"add {REPLACES_SPEC}=1 to stay at natural"
    if level == "natural":
        told = (
            f"HYBRID_BLOCKS=natural reaches level manager here, because of {reason}: this command "
            "gets the figures of vLLM"
        )
        return f"{told}; {remedy}" if remedy else told
    told = f"HYBRID_BLOCKS is {asked}: this command gets the figures of vLLM; "
    if remedy:
        return (
            f"{told}because of {reason}, only HYBRID_BLOCKS=natural {REPLACES_SPEC}=1 gets those "
            "of natural"
        )
    return f"{told}HYBRID_BLOCKS=natural reaches level manager, because of {reason}"
