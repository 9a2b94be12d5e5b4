"""The copies that a scheduler asks of workers, by kind.

The scheduler knows the plan and workers the memory. So a copy to another format carries what a
worker must know of its group, and no worker reads the environment for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint

if TYPE_CHECKING:
    from hybrid_blocks.kernels import StateLayout


@dataclass(frozen=True)
class Recipe:
    """How a group's states are converted: its pools lie in the one allocation of these bytes."""

    arena_bytes: int
    layout: "StateLayout"


class ConvertingCopy(NamedTuple):
    """A copy between the two pools of a group. Such a copy ``keeps`` a state, or brings one back.

    vLLM's own function refuses a tuple of this length, so it never takes it for a plain copy.
    """

    src_block_id: int
    dst_block_id: int
    group: int
    keeps: bool
    recipe: Recipe


def split(
    copies: Iterable[Any],
) -> tuple[list[Any], list[ConvertingCopy], list[PrefillCheckpoint]]:
    """Return the copies of whole blocks, those that convert, and what the forward leaves."""
    kinds: dict[type, list[Any]] = {ConvertingCopy: [], PrefillCheckpoint: []}
    plain: list[Any] = []
    for copy in copies:
        kinds.get(type(copy), plain).append(copy)
    return plain, kinds[ConvertingCopy], kinds[PrefillCheckpoint]
