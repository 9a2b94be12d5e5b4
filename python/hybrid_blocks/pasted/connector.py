"""The KV connector of a command."""

from collections.abc import Mapping
from typing import Any, Final

from hybrid_blocks.plan.connector import Connector

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
    """Return the name that ``doctor`` has for the connector: this package's, or its own.

    Of a list that level ``natural`` refuses it is the name of a connector that it refuses.
    """
    connector = connector_of(options)
    if connector is None:
        return None
    if connector.refused(environment) is not None:
        refused = (it for it in connector.listed if it.refused(environment))
        first = next(refused, connector) if connector.weighs else connector
        return "NixlConnector" if first.pulls else first.name
    if connector.weighs and any(it.pulls for it in connector.listed):
        return "HybridMultiConnector"
    return "HybridNixlConnector" if connector.pulls else "HybridOffloadingConnector"
