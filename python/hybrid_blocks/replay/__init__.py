"""Replays a trace through a block manager, as a continuous-batching engine would drive it."""

from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.engine import Engine
from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.replay.managers import ManagerName, make_manager
from hybrid_blocks.replay.result import Result
from hybrid_blocks.replay.run import replay
from hybrid_blocks.replay.sizing import UNBOUNDED, num_blocks_for
from hybrid_blocks.replay.step_time import StepTime
from hybrid_blocks.replay.timeline import Timeline

__all__ = [
    "UNBOUNDED",
    "Engine",
    "EngineConfig",
    "ManagerName",
    "ReplayError",
    "Result",
    "StepTime",
    "Timeline",
    "make_manager",
    "num_blocks_for",
    "replay",
]
