"""Copies between running states and checkpoints that have another format, carried out by torch.

The scheduler knows the plan and workers the memory. So each copy carries what a worker must know of
its group, and no worker reads the environment for it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from hybrid_blocks.model.layer import StateFormat
from hybrid_blocks.vllm.state_codec import decode, encode

BATCH_BYTES: Final = 16 * 2**20
"""Bytes of running states that are converted at once, unless a single layer's state is larger.

Temporary memory is at most four times as much.
"""


class Place(NamedTuple):
    """Layer ``l`` of block ``b`` begins at ``offset + l * layer_stride + b * block_stride``."""

    offset: int
    layer_stride: int
    block_stride: int


class Run(NamedTuple):
    """Layers that lie side by side, in running states and in checkpoints."""

    num_layers: int
    running: Place
    kept: Place


@dataclass(frozen=True)
class Recipe:
    """How a group's states are converted.

    A layer's state takes ``page_bytes``. It ends with ``heads`` of ``numbers`` in float32, which
    alone are converted; they lie at the same byte in a checkpoint. All lies in the one allocation
    of ``arena_bytes``.
    """

    checkpoint_format: StateFormat
    arena_bytes: int
    page_bytes: int
    heads: int
    numbers: int
    runs: tuple[Run, ...]

    @property
    def num_same(self) -> int:
        """Bytes before the heads, which stay as they are."""
        return self.page_bytes - self.heads * self.numbers * 4

    @property
    def head_bytes(self) -> int:
        """Bytes of a head in a checkpoint."""
        return self.numbers * 2 if self.checkpoint_format == "bf16" else self.numbers + 4


class ConvertingCopy(NamedTuple):
    """A copy between the two pools of a group. It ``keeps`` a state, or brings one back.

    vLLM's own function refuses a tuple of this length, so it never takes it for a plain copy.
    """

    src_block_id: int
    dst_block_id: int
    group: int
    keeps: bool
    recipe: Recipe


def split(copies: Iterable[Any]) -> tuple[list[Any], list[ConvertingCopy]]:
    """Return the copies of whole blocks, and those that convert."""
    plain: list[Any] = []
    converting: list[ConvertingCopy] = []
    for copy in copies:
        (converting if isinstance(copy, ConvertingCopy) else plain).append(copy)
    return plain, converting


def convert(caches: Sequence[torch.Tensor], copies: Iterable[ConvertingCopy]) -> None:
    """Carry out copies. No block is the source of one and the destination of another.

    On CUDA nothing waits for the device.
    """
    by_kind: dict[tuple[Recipe, bool], list[tuple[int, int]]] = defaultdict(list)
    for copy in copies:
        by_kind[copy.recipe, copy.keeps].append((copy.src_block_id, copy.dst_block_id))
    for (recipe, keeps), pairs in by_kind.items():
        at_once = max(1, BATCH_BYTES // recipe.page_bytes)
        arena = _arena(caches, recipe)
        for first in range(0, len(pairs), at_once):
            _convert(arena, recipe, pairs[first : first + at_once], keeps=keeps)


def _arena(caches: Sequence[torch.Tensor], recipe: Recipe) -> torch.Tensor:
    """Return the bytes of the allocation that holds all layers."""
    for cache in caches:
        storage = cache.untyped_storage()
        if storage.nbytes() >= recipe.arena_bytes:
            # Made in either mode, it may be written in either.
            with torch.inference_mode(mode=False):
                return torch.empty(0, dtype=torch.uint8, device=cache.device).set_(storage)
    raise RuntimeError(
        f"no cache tensor lies in an allocation of {recipe.arena_bytes:,} bytes, in which "
        "checkpoints are converted; leave out format= of HYBRID_BLOCKS_CHECKPOINTS"
    )


def _convert(
    arena: torch.Tensor, recipe: Recipe, pairs: Sequence[tuple[int, int]], *, keeps: bool
) -> None:
    sources, targets = (_on_device(ids, arena.device) for ids in zip(*pairs, strict=True))
    most = [1 + max(ids) for ids in zip(*pairs, strict=True)]
    num_running, num_kept = most if keeps else reversed(most)
    for run, first, count in _batches(recipe, len(pairs)):
        running = _Pages(arena, run.running, first, count, num_running)
        kept = _Pages(arena, run.kept, first, count, num_kept)
        source, target = (running, kept) if keeps else (kept, running)
        if same := recipe.num_same:
            found = source.view(0, same).index_select(0, sources)
            target.view(0, same).index_copy_(0, targets, found)
        states = running.view(recipe.num_same, recipe.heads, recipe.numbers * 4)
        checkpoints = kept.view(recipe.num_same, recipe.heads, recipe.head_bytes)
        if keeps:
            found = states.index_select(0, sources).view(torch.float32)
            checkpoints.index_copy_(0, targets, encode(found, recipe.checkpoint_format))
        else:
            found = decode(checkpoints.index_select(0, sources), recipe.checkpoint_format)
            states.index_copy_(0, targets, found.view(torch.uint8))


def _batches(recipe: Recipe, num_copies: int) -> Iterator[tuple[Run, int, int]]:
    """Yield layers of each run, as many as are converted at once: the first, and how many."""
    at_once = max(1, BATCH_BYTES // (num_copies * recipe.page_bytes))
    for run in recipe.runs:
        for first in range(0, run.num_layers, at_once):
            yield run, first, min(at_once, run.num_layers - first)


class _Pages(NamedTuple):
    """Pages of ``num_layers`` layers from ``first`` on, of the first ``num_blocks`` blocks."""

    arena: torch.Tensor
    place: Place
    first: int
    num_layers: int
    num_blocks: int

    def view(self, start: int, *shape: int) -> torch.Tensor:
        """Return the bytes from ``start`` on of each page, in a shape: ``[block, layer, ...]``."""
        offset, layer_stride, block_stride = self.place
        inner = [shape[-1], 1] if len(shape) > 1 else [1]
        return self.arena.as_strided(
            (self.num_blocks, self.num_layers, *shape),
            (block_stride, layer_stride, *inner),
            offset + self.first * layer_stride + start,
        )


def _on_device(ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return ids where they are used. Pinned memory spares the host a wait."""
    pinned = torch.tensor(ids, dtype=torch.int64, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)
