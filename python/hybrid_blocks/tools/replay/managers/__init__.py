"""The managers that a trace can be replayed through."""

from enum import StrEnum

from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.config import EngineConfig
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.replay.managers.filmed import FilmedManager
from hybrid_blocks.tools.replay.managers.rust import RustOptions, make_rust
from hybrid_blocks.tools.replay.managers.vllm_manager import VllmOptions, make_vllm


class ManagerName(StrEnum):
    """The names of managers on the command line."""

    RUST = "rust"
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
            if rust is not None and rust.host_bytes:
                from hybrid_blocks.tools.replay.hosted import make_hosted  # noqa: PLC0415 - not in every build

                return make_hosted(cache, config, rust)
            made = make_rust(cache, config, rust or RustOptions())
            is_filmed = rust is not None and rust.with_film
            return FilmedManager(made, cache.geometry) if is_filmed else made
        case ManagerName.VLLM:
            return make_vllm(cache, config, vllm or VllmOptions())


__all__ = ["ManagerName", "RustOptions", "VllmOptions", "make_manager"]
