"""The KV connector of an engine's configuration, and whether level ``natural`` serves it."""

import os
from typing import Any

from vllm.config import VllmConfig

from hybrid_blocks.plan.connector import Connector


def refused(config: VllmConfig) -> str | None:
    """Return why an engine's KV connector is refused; ``None`` where there is none, or it is not.

    This follows from the configuration alone, so that workers and the engine core agree.
    """
    transfer: Any = config.kv_transfer_config
    if transfer is None:
        return None
    connector = Connector(
        getattr(transfer, "kv_connector", None),
        getattr(transfer, "kv_connector_module_path", None),
        getattr(transfer, "kv_connector_extra_config", None) or {},
    )
    return connector.refused(os.environ)
