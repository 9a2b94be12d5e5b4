"""``HYBRID_BLOCKS_OFFLOAD=1``: the spec instead of vLLM's own."""

from typing import Any, Final

from hybrid_blocks import variables

_REPLACED: Final = "CPUOffloadingSpec"


def replace_spec() -> None:
    """Let ``--kv-offloading-size`` of vLLM use `HybridOffloadingSpec` if the variable asks."""
    if variables.OFFLOAD.choice() == "0":
        return
    from vllm.v1.kv_offload.base import OffloadingSpec  # noqa: PLC0415 - older ones have no such
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: PLC0415

    def load() -> type[OffloadingSpec]:
        from hybrid_blocks.offload import HybridOffloadingSpec  # noqa: PLC0415 - checks the release

        return HybridOffloadingSpec

    # The factory refuses a second registration of a name.
    OffloadingSpecFactory._registry[_REPLACED] = load


def serve_slabs() -> None:
    """Let ``OffloadingConnector`` serve engines whose blocks lie in slabs, once it is needed."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: PLC0415 - as above

    def load() -> Any:
        from hybrid_blocks.offload.slabs import connector  # noqa: PLC0415 - imports a connector

        return connector.install()

    KVConnectorFactory._registry["OffloadingConnector"] = load
