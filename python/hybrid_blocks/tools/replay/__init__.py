"""Replays a trace through a block manager, as a continuous-batching engine would drive it."""

from hybrid_blocks.tools.replay.cache import (
    UNBOUNDED,
    Cache,
    block_cache,
    model_cache,
    read_num_blocks,
)
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.config import EngineConfig, ReplayError
from hybrid_blocks.tools.replay.engine import VirtualEngine
from hybrid_blocks.tools.replay.managers import ManagerName, RustOptions, VllmOptions, make_manager
from hybrid_blocks.tools.replay.result import Result
from hybrid_blocks.tools.replay.run import replay, request_limits

__all__ = [
    "UNBOUNDED",
    "Cache",
    "EngineConfig",
    "ManagerName",
    "ReplayError",
    "Result",
    "RustOptions",
    "Timeline",
    "VirtualEngine",
    "VllmOptions",
    "block_cache",
    "make_manager",
    "model_cache",
    "read_num_blocks",
    "replay",
    "request_limits",
]
