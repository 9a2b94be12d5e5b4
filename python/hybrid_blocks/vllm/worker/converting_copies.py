"""Copies between running states and checkpoints that have another format.

The scheduler knows the plan and workers the memory. So each copy carries what a worker must know of
its group, and no worker reads the environment for it.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from hybrid_blocks.kernels import StateLayout, StatePools, convert_states

if TYPE_CHECKING:
    from collections.abc import MutableMapping

# That of the other modules, which import it from vLLM.
logger = logging.getLogger("vllm.hybrid_blocks")


@dataclass(frozen=True)
class Recipe:
    """How a group's states are converted: its pools lie in the one allocation of these bytes."""

    arena_bytes: int
    layout: StateLayout


class ConvertingCopy(NamedTuple):
    """A copy between the two pools of a group. It ``keeps`` a state, or brings one back.

    vLLM's own function refuses a tuple of this length, so it never takes it for a plain copy.
    """

    src_block_id: int
    dst_block_id: int
    group: int
    keeps: bool
    recipe: Recipe


class _Known(NamedTuple):
    """Pools in an allocation that begins at ``address``, and why torch converts their states."""

    address: int
    pools: StatePools
    reason: str = ""


def split(copies: Iterable[Any]) -> tuple[list[Any], list[ConvertingCopy]]:
    """Return the copies of whole blocks, and those that convert."""
    plain: list[Any] = []
    converting: list[ConvertingCopy] = []
    for copy in copies:
        (converting if isinstance(copy, ConvertingCopy) else plain).append(copy)
    return plain, converting


def convert(caches: Sequence[torch.Tensor], copies: Iterable[ConvertingCopy]) -> None:
    """Carry out copies. No block is the source of one and the destination of another.

    On CUDA nothing waits for the device. The copies of one recipe and direction are one launch.
    """
    by_kind: dict[tuple[Recipe, bool], dict[int, int]] = defaultdict(dict)
    for copy in copies:
        by_kind[copy.recipe, copy.keeps][copy.dst_block_id] = copy.src_block_id
    for (recipe, keeps), sources in by_kind.items():
        src, dst = (np.array(list(ids), np.int32) for ids in (sources.values(), sources))
        _convert(caches, recipe, src, dst, keeps=keeps)


def _convert(
    caches: Sequence[torch.Tensor], recipe: Recipe, src: Any, dst: Any, *, keeps: bool
) -> None:
    tensor = _tensor_in(caches, recipe)
    recipes = _recipes().setdefault(tensor, {})
    known = recipes.get(recipe)
    address = tensor.untyped_storage().data_ptr()
    if known is None or known.address != address:
        known = recipes[recipe] = _Known(address, StatePools(_arena(tensor), recipe.layout))
    if not known.reason:
        try:
            convert_states(known.pools, src, dst, keeps=keeps)
        except (ImportError, OSError, RuntimeError) as error:
            if known.pools.launches:
                raise
            # Nothing was ever launched: a compiler or a library is missing.
            known = recipes[recipe] = known._replace(reason=f"{type(error).__name__}: {error}")
            _warn(known.reason)
        else:
            return
    from hybrid_blocks.kernels.convert_states import naive  # noqa: PLC0415 - for workers only

    naive.convert(known.pools, src, dst, keeps=keeps)


def _tensor_in(caches: Sequence[torch.Tensor], recipe: Recipe) -> torch.Tensor:
    """Return a tensor of the allocation that holds all layers."""
    for tensor in caches:
        if tensor.untyped_storage().nbytes() >= recipe.arena_bytes:
            return tensor
    raise RuntimeError(
        f"no cache tensor lies in an allocation of {recipe.arena_bytes:,} bytes, in which "
        "checkpoints are converted; leave out format= of HYBRID_BLOCKS_CHECKPOINTS"
    )


def _arena(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's allocation."""
    # Made in either mode, it may be written in either.
    with torch.inference_mode(mode=False):
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return whole.set_(tensor.untyped_storage())


@cache
def _warn(reason: str) -> None:
    """Say once why no kernel converts."""
    logger.warning("hybrid_blocks: torch converts states: %s", reason)


@cache
def _recipes() -> "MutableMapping[torch.Tensor, dict[Recipe, _Known]]":
    from torch.utils.weak import WeakIdKeyDictionary  # noqa: PLC0415 - for workers only

    return WeakIdKeyDictionary()
