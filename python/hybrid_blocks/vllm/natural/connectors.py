"""Which KV connectors level ``natural`` serves: those that know blocks in slabs."""

import os
from typing import Any

from vllm.config import VllmConfig

_SPEC = "HybridOffloadingSpec"
_OURS = "hybrid_blocks.offload.connector"
_STOCK_SPEC = "CPUOffloadingSpec"
_REPLACES_SPEC = "HYBRID_BLOCKS_OFFLOAD"


def refused(config: VllmConfig) -> str | None:
    """Return why an engine's KV connector is refused; ``None`` where there is none, or it is not.

    This follows from the configuration alone, so that workers and the engine core agree.
    """
    transfer: Any = config.kv_transfer_config
    if transfer is None:
        return None
    name = getattr(transfer, "kv_connector", None)
    module = getattr(transfer, "kv_connector_module_path", None)
    extra = getattr(transfer, "kv_connector_extra_config", None) or {}
    is_ours = name == "OffloadingConnector" and module is None
    is_ours |= name == "HybridOffloadingConnector" and module == _OURS
    spec = extra.get("spec_name", _STOCK_SPEC)
    replaces = os.environ.get(_REPLACES_SPEC) == "1" and spec == _STOCK_SPEC
    if not is_ours:
        return f"the KV connector {name}"
    if spec != _SPEC and not replaces:
        return f"the KV connector {name} with {spec}"
    if extra.get("store", "eager") != "eager":
        return f"the KV connector {name} that stores lazily"
    return None
