"""The cache tensors of a model runner as one group of blocks, for the kernels."""

from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

import numpy as np

from hybrid_blocks.kernels import BlockTensors, copy_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping, Sequence

    import torch


class Described(NamedTuple):
    """A description of a runner's tensors: ``group``, or the ``reason`` why there is none."""

    tensors: "tuple[ref[torch.Tensor], ...]"
    num_blocks: int
    address: int
    group: BlockTensors | None
    reason: str = ""

    def is_of(self, caches: "Sequence[torch.Tensor]", num_blocks: int) -> bool:
        """Return whether these very tensors were described, and lie where they lay."""
        return (
            self.num_blocks == num_blocks
            and self.address == caches[0].data_ptr()
            and len(self.tensors) == len(caches)
            and all(known() is cache for known, cache in zip(self.tensors, caches, strict=True))
        )


def described(caches: "Sequence[torch.Tensor]", num_blocks: int) -> Described:
    """Return the tensors as a group of ``num_blocks`` blocks, made at the first call for them."""
    known = _known()
    found = known.get(caches[0])
    if found is None or not found.is_of(caches, num_blocks):
        found = known[caches[0]] = _describe(caches, num_blocks)
    return found


def copy(
    caches: "Sequence[torch.Tensor]", num_blocks: int, copies: "Sequence[tuple[int, int]]"
) -> str | None:
    """Copy blocks from source to target in all tensors, every source as it was before.

    Returns why nothing was copied; None where all was.
    """
    found = described(caches, num_blocks)
    if found.group is None:
        return found.reason
    src, dst = np.array(copies, np.int32).T.copy()
    if len(set(dst.tolist())) < len(dst):
        return "a step writes a block twice"
    try:
        copy_blocks(found.group, src, dst, order="gather_then_scatter")
    except (ImportError, OSError, RuntimeError) as error:
        if found.group.launches:
            raise
        # Nothing was ever launched: a compiler or a library is missing.
        reason = f"{type(error).__name__}: {error}"
        _known()[caches[0]] = found._replace(group=None, reason=reason)
        return reason
    return None


def views(caches: "Sequence[torch.Tensor]", num_blocks: int) -> "Iterator[torch.Tensor]":
    """Yield what a copy of blocks moves, as vLLM chooses it: dimension 0 counts blocks.

    A storage that is blocks from end to end is moved whole, once. Else a tensor's own elements are,
    and of several tensors that begin at the same byte only the first one's. Views may share bytes.
    """
    import torch  # noqa: PLC0415 - for workers only

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
        # A view would keep the runner's tensor alive, and with it what is known of it.
        if storage.nbytes() != num_blocks * block_bytes:
            own = tensor.unflatten(0, (num_blocks, kernel_blocks))
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            yield view.set_(storage, own.storage_offset(), own.shape, own.stride())
        elif storage.data_ptr() not in whole:
            whole.add(storage.data_ptr())
            view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            yield view.set_(storage, 0, (num_blocks, block_bytes), (block_bytes, 1))


def _describe(caches: "Sequence[torch.Tensor]", num_blocks: int) -> Described:
    import torch  # noqa: PLC0415 - for workers only

    tensors, address = tuple(map(ref, caches)), caches[0].data_ptr()
    if caches[0].device.type not in ("cpu", "cuda"):
        reason = f"the kernels do not run on {caches[0].device.type}"
        return Described(tensors, num_blocks, address, None, reason)
    try:
        with torch.inference_mode(mode=False):
            group = BlockTensors(list(views(caches, num_blocks)), may_share=True)
    except ValueError as error:
        return Described(tensors, num_blocks, address, None, str(error))
    if group.reach > 1:
        reason = f"blocks whose ids differ by less than {group.reach} share bytes"
        return Described(tensors, num_blocks, address, None, reason)
    return Described(tensors, num_blocks, address, group)


@cache
def _known() -> "MutableMapping[torch.Tensor, Described]":
    from torch.utils.weak import WeakIdKeyDictionary  # noqa: PLC0415 - for workers only

    return WeakIdKeyDictionary()
