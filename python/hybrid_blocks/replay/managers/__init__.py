"""The managers that a trace can be replayed through."""

from enum import StrEnum

from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.manager import ReplayManager
from hybrid_blocks.replay.managers.reference import make_reference
from hybrid_blocks.replay.managers.rust import RustOptions, make_rust
from hybrid_blocks.replay.managers.vllm_manager import VllmOptions, make_vllm


class ManagerName(StrEnum):
    """What a manager is called on the command line."""

    RUST = "rust"
    PYTHON = "python"
    VLLM = "vllm"


def make_manager(
    name: ManagerName,
    cache: Cache,
    config: EngineConfig,
    *,
    rust: RustOptions | None = None,
    vllm: VllmOptions | None = None,
) -> ReplayManager:
    """Make an empty manager for a cache.

    Raises:
        ReplayError: the manager cannot serve this cache, or is not installed.
    """
    match name:
        case ManagerName.RUST:
            return make_rust(cache, config, rust or RustOptions())
        case ManagerName.PYTHON:
            return make_reference(cache)
        case ManagerName.VLLM:
            return make_vllm(cache, config, vllm or VllmOptions())


__all__ = ["ManagerName", "RustOptions", "VllmOptions", "make_manager"]
