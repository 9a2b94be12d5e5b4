"""KV connectors, and the configuration of an engine with one. Imports no vLLM."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

CONNECTORS: Mapping[str, str] = MappingProxyType(
    {
        "offloading": "OffloadingConnector",
        "simple-offloading": "SimpleCPUOffloadConnector",
        "example": "ExampleConnector",
        "nixl": "NixlConnector",
        "lmcache": "LMCacheConnectorV1",
        "mooncake": "MooncakeConnector",
        "hybrid-offloading": "HybridOffloadingConnector",
        "hybrid-nixl": "HybridNixlConnector",
        "hybrid-multi": "HybridMultiConnector",
    }
)
"""KV connectors by a short name: vLLM's, and this package's own."""

OFFLOADING: Final = "HybridOffloadingConnector"
_PULLS: Final = "HybridNixlConnector"
_SEVERAL: Final = "HybridMultiConnector"
OURS: Mapping[str, str] = MappingProxyType(
    {
        OFFLOADING: "hybrid_blocks.offload.connector",
        _PULLS: "hybrid_blocks.offload.nixl",
        _SEVERAL: "hybrid_blocks.offload.several",
    }
)
"""This package's connectors and their modules."""
_LISTED: Final = (OFFLOADING, _PULLS)
"""The connectors in the list of `HybridMultiConnector`."""
_NONE: Mapping[str, str] = MappingProxyType({})


def asked(name: str) -> dict[str, Any]:
    """Return the ``kv_transfer_config`` by which users ask for a connector of this package."""
    return transfer(name, {"spec_name": "HybridOffloadingSpec"})


def transfer(
    name: str, extra: Mapping[str, Any], stands: Mapping[str, str] = _NONE
) -> dict[str, Any]:
    """Return the ``kv_transfer_config`` of a connector. Others may stand for those in it."""
    if name == _SEVERAL:
        extra = {"connectors": [transfer(it, extra, stands) for it in _LISTED]}
    name = stands.get(name, name)
    return {
        "kv_connector": name,
        "kv_connector_module_path": OURS.get(name),
        "kv_role": "kv_both",
        "kv_connector_extra_config": dict(extra),
    }
