"""The copies of cache blocks by kernels: of whole blocks, and between formats of a state."""

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import ref

import numpy as np
import torch

from hybrid_blocks.kernels import BlockTensors, StatePools, convert_states, copy_blocks
from hybrid_blocks.vllm.worker.copies import ConvertingCopy, Recipe

# The other modules import this logger from vLLM.
logger = logging.getLogger("vllm.hybrid_blocks")


@dataclass(slots=True)
class Described:
    """A runner's tensors as kernels take them, and the reason why other code copies there.

    ``group`` is ``None`` for tensors that kernels cannot address.
    """

    tensors: tuple["ref[torch.Tensor]", ...]
    address: int
    group: Any
    reason: str = ""

    def is_of(self, caches: Sequence[torch.Tensor]) -> bool:
        """Return whether these very tensors were described, and lie where they lay."""
        return (
            self.address == caches[0].data_ptr()
            and len(self.tensors) == len(caches)
            and all(known() is cache for known, cache in zip(self.tensors, caches, strict=True))
        )

    def run(self, kernel: Callable[[], None]) -> str:
        """Call a kernel, and return why no kernel runs here: an empty text if one did.

        An error after a first launch is raised.
        """
        if not self.reason:
            try:
                kernel()
            except (ImportError, OSError, RuntimeError) as error:
                if self.group.launches:
                    raise
                # Without any launch, a compiler or a library is missing.
                self.reason = f"{type(error).__name__}: {error}"
        return self.reason


def _once(
    caches: Sequence[torch.Tensor], key: Hashable, describe: Callable[[], tuple[Any, str]]
) -> Described:
    """Return what was described of tensors under a key; ``describe`` is called for new ones."""
    known = _known().setdefault(caches[0], {})
    found = known.get(key)
    if found is None or not found.is_of(caches):
        address = caches[0].data_ptr()
        found = known[key] = Described(tuple(map(ref, caches)), address, *describe())
    return found


@cache
def _known() -> "MutableMapping[torch.Tensor, dict[Hashable, Described]]":
    from torch.utils.weak import WeakIdKeyDictionary  # noqa: PLC0415 - for workers only

    return WeakIdKeyDictionary()


# --- whole blocks -----------------------------------------------------------


def copy(
    caches: Sequence[torch.Tensor], num_blocks: int, copies: Sequence[tuple[int, int]]
) -> str | None:
    """Copy blocks from source to target in all tensors, every source as it was before.

    Returns why no block was copied; ``None`` if all were.
    """
    found = described(caches, num_blocks)
    if found.reason:
        return found.reason
    src, dst = np.array(copies, np.int32).T.copy()
    if len(set(dst.tolist())) < len(dst):
        return "a step writes a block twice"
    return (
        found.run(lambda: copy_blocks(found.group, src, dst, order="gather_then_scatter")) or None
    )


def described(caches: Sequence[torch.Tensor], num_blocks: int) -> Described:
    """Return the tensors as a group of ``num_blocks`` blocks, made at the first call for them."""
    return _once(caches, num_blocks, lambda: _describe(caches, num_blocks))


def _describe(caches: Sequence[torch.Tensor], num_blocks: int) -> tuple[BlockTensors | None, str]:
    if caches[0].device.type not in ("cpu", "cuda"):
        return None, f"the kernels do not run on {caches[0].device.type}"
    try:
        with torch.inference_mode(mode=False):
            group = BlockTensors(list(views(caches, num_blocks)), may_share=True)
    except ValueError as error:
        return None, str(error)
    if group.reach > 1:
        return None, f"blocks whose ids differ by less than {group.reach} share bytes"
    return group, ""


def views(caches: Sequence[torch.Tensor], num_blocks: int) -> Iterator[torch.Tensor]:
    """Yield what a copy of blocks moves, as vLLM chooses it: dimension 0 counts blocks.

    A storage that is blocks from end to end is moved whole, once. In any other, a tensor's own
    elements are moved, and of tensors that begin at the same byte only the first one's. Views may
    share bytes.
    """
    seen, whole = set(), set()
    for tensor in caches:
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        kernel_blocks, rest = divmod(tensor.shape[0], num_blocks)
        if rest:
            raise ValueError(
                f"{tensor.shape[0]} kernel blocks are no multiple of {num_blocks} blocks"
            )
        storage = tensor.untyped_storage()
        block_bytes = tensor.stride(0) * tensor.element_size() * kernel_blocks
        if storage.nbytes() != num_blocks * block_bytes:
            yield _view(tensor, tensor.unflatten(0, (num_blocks, kernel_blocks)))
        elif storage.data_ptr() not in whole:
            whole.add(storage.data_ptr())
            view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            yield view.set_(storage, 0, (num_blocks, block_bytes), (block_bytes, 1))


# --- a layer's states -------------------------------------------------------


def copy_layer(caches: Sequence[torch.Tensor], src: Any, dst: Any) -> None:
    """Copy a layer's states from slots ``src`` to slots ``dst``, in one launch where kernels run.

    ``caches`` are the layer's tensors; ``src`` and ``dst`` are int32 arrays.
    """
    found = _once(caches, "layer", lambda: _describe_layer(caches))
    if reason := found.run(lambda: copy_blocks(found.group, src, dst)):
        _warn(reason)
        for tensor in caches:
            for source, target in zip(src.tolist(), dst.tolist(), strict=True):
                tensor[target].copy_(tensor[source])


def _describe_layer(caches: Sequence[torch.Tensor]) -> tuple[BlockTensors | None, str]:
    try:
        with torch.inference_mode(mode=False):
            return BlockTensors([_view(tensor, tensor) for tensor in caches]), ""
    except ValueError as error:
        return None, str(error)


def _view(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the shape of ``like`` over the bytes of ``tensor``.

    A view of the runner's tensor would keep it alive, and with it its description.
    """
    view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage()
    return view.set_(storage, like.storage_offset(), like.shape, like.stride())


# --- between formats --------------------------------------------------------


def convert(caches: Sequence[torch.Tensor], copies: Iterable[ConvertingCopy]) -> None:
    """Carry out copies. No block is the source of one and the destination of another.

    On CUDA no call waits for the device. The copies of one recipe and direction are one launch.
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
    found = _once([tensor], recipe, lambda: (StatePools(_arena(tensor), recipe.layout), ""))
    if reason := found.run(lambda: convert_states(found.group, src, dst, keeps=keeps)):
        from hybrid_blocks.kernels.convert_states import naive  # noqa: PLC0415 - seldom needed

        _warn(reason)
        naive.convert(found.group, src, dst, keeps=keeps)


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
    # A tensor made outside inference mode may be written in either mode.
    with torch.inference_mode(mode=False):
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return whole.set_(tensor.untyped_storage())


@cache
def _warn(reason: str) -> None:
    """Log once why no kernel moves states."""
    logger.warning("hybrid_blocks: torch moves states: %s", reason)
