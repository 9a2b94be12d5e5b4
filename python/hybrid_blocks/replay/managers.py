"""The managers that a trace can be replayed through."""

from collections.abc import Callable
from enum import StrEnum

from hybrid_blocks.manager import Manager
from hybrid_blocks.reference import ReferenceManager
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.errors import ReplayError


def _python(num_blocks: int, config: EngineConfig) -> Manager:
    return ReferenceManager(num_blocks, config.block_size)


class ManagerName(StrEnum):
    """What a manager is called on the command line."""

    PYTHON = "python"


MANAGERS: dict[ManagerName, Callable[[int, EngineConfig], Manager]] = {ManagerName.PYTHON: _python}
"""What makes an empty manager of so many blocks."""


def make_manager(name: ManagerName, num_blocks: int, config: EngineConfig) -> Manager:
    """Make an empty manager with ``num_blocks`` blocks to hand out."""
    if num_blocks < 1:
        raise ReplayError(f"a pool of {num_blocks} blocks can serve nothing; give it at least 1")
    return MANAGERS[name](num_blocks, config)
