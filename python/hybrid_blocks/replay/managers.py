"""The managers that a trace can be replayed through."""

from collections.abc import Callable
from enum import StrEnum

from hybrid_blocks import BlockManager, GroupSpec, block_hasher
from hybrid_blocks.manager import Manager
from hybrid_blocks.reference import ReferenceManager
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.errors import ReplayError


class ManagerName(StrEnum):
    """What a manager is called on the command line."""

    RUST = "rust"
    PYTHON = "python"


def _rust(num_blocks: int, config: EngineConfig) -> Manager:
    return BlockManager(
        [GroupSpec("full", config.block_size)],
        block_hasher(block_size=config.block_size),
        num_blocks=num_blocks + 1,
        max_chunk=config.max_num_batched_tokens,
    )


def _python(num_blocks: int, config: EngineConfig) -> Manager:
    return ReferenceManager(num_blocks, config.block_size)


_MAKE: dict[ManagerName, Callable[[int, EngineConfig], Manager]] = {
    ManagerName.RUST: _rust,
    ManagerName.PYTHON: _python,
}


def make_manager(name: ManagerName, num_blocks: int, config: EngineConfig) -> Manager:
    """Make an empty manager with ``num_blocks`` blocks to hand out, the null block not counted."""
    if num_blocks < 1:
        raise ReplayError(f"a pool of {num_blocks} blocks can serve nothing; give it at least 1")
    return _MAKE[name](num_blocks, config)
