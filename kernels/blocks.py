"""The tensors of one group, described for the device as segments and units."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from hybrid_blocks.kernels.ids import IdChecks

if TYPE_CHECKING:
    import torch

MAX_RUNS = 1 << 16  # contiguous runs a block may have in one tensor

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """The tables by which a kernel finds every byte of a block.

    ``segments`` is int64 ``[num_segments, 4]``: the address of block 0, the block stride, the
    bytes of the run, and its offset in a staging record. ``units`` is int32 ``[num_units, 2]``:
    the segment and the index of a piece of at most ``unit_bytes`` in it. A launch over ``n``
    blocks has ``n * num_units`` equal pieces of work, whatever the shapes of the layers.
    """

    segments: "torch.Tensor"
    units: "torch.Tensor"
    unit_bytes: int

    @property
    def num_units(self) -> int:
        """Pieces of work a block is cut into."""
        return self.units.shape[0]


@dataclass(eq=False)
class BlockTensors:
    """All tensors, over all layers, that share one block table; dimension 0 is the block id.

    A tensor may be any strided view of an arena: convolution and recurrent state differ in
    shape, dtype and stride, attention pages may lie strided inside a slab. Each is cut into
    *segments*, the runs of bytes that are contiguous in every block. Only addresses are kept on
    the device, so the tensors' storage must stay where it is.

    With ``may_share``, a byte may belong to several tensors, at the same place of a block in each.
    Layers of several kinds that use a region in turns are like that. Such a byte counts once.

    Raises ``ValueError`` when the tensors disagree in device or block count, or a block of one
    would overlap itself.
    """

    tensors: Sequence["torch.Tensor"]
    may_share: bool = False
    device: "torch.device" = field(init=False)
    num_blocks: int = field(init=False)
    segments: Int64s = field(init=False)
    record_bytes: int = field(init=False)
    reach: int = field(init=False)

    def __post_init__(self) -> None:
        self.tensors = tuple(self.tensors)
        if not self.tensors:
            raise ValueError("a group needs at least one tensor, got none")
        self.device = self.tensors[0].device
        self.num_blocks = _common_num_blocks(self.tensors)
        runs = [(*run, i) for i, tensor in enumerate(self.tensors) for run in _runs(i, tensor)]
        if self.may_share:
            runs = _united(runs)
        self._owners = [owner for *_, owner in runs]
        self.segments = np.zeros((len(runs), 4), np.int64)
        self.segments[:, :3] = [run[:3] for run in runs]
        self.segments[1:, 3] = np.cumsum(self.segments[:-1, 2])
        self.record_bytes = int(self.segments[:, 2].sum())
        self.reach = reach_of(self.segments, self.num_blocks)
        self.checks = IdChecks(self.num_blocks)
        # The launches that are laid out for these tensors, by stream and kernel.
        self.launches: dict[tuple[int, str], Any] = {}
        self._tables: dict[int, DeviceTables] = {}
        begins = self.segments[:, 0]
        ends = begins + (self.num_blocks - 1) * self.segments[:, 1] + self.segments[:, 2]
        self._extent = int(begins.min()), int(ends.max())

    @property
    def alignment(self) -> int:
        """Largest power of two, at most 16, that divides every address and length."""
        bits = int(np.bitwise_or.reduce(self.segments, axis=None)) | 16
        return bits & -bits

    def overlaps(self, address: int, num_bytes: int) -> bool:
        """Return whether ``num_bytes`` from ``address`` may share bytes with some block."""
        if address >= self._extent[1] or address + num_bytes <= self._extent[0]:
            return False
        begin = self.segments[:, 0]
        end = begin + (self.num_blocks - 1) * self.segments[:, 1] + self.segments[:, 2]
        return bool(np.any((begin < address + num_bytes) & (address < end)))

    def byte_views(self) -> list["torch.Tensor"]:
        """Return a uint8 view ``[num_blocks, bytes]`` of each segment."""
        import torch  # noqa: PLC0415

        views = []
        for owner, (base, stride, size, _) in zip(self._owners, self.segments, strict=True):
            storage = self.tensors[owner].untyped_storage()
            flat = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
            start = int(base) - storage.data_ptr()
            views.append(flat.as_strided((self.num_blocks, int(size)), (int(stride), 1), start))
        return views

    def tables(self, unit_bytes: int) -> DeviceTables:
        """Return the device tables for pieces of ``unit_bytes``, built at the first call."""
        if unit_bytes not in self._tables:
            import torch  # noqa: PLC0415

            counts = -(-self.segments[:, 2] // unit_bytes)
            units = np.empty((int(counts.sum()), 2), np.int32)
            units[:, 0] = np.repeat(np.arange(len(counts)), counts)
            firsts = np.repeat(np.cumsum(counts) - counts, counts)
            units[:, 1] = np.arange(len(units)) - firsts
            self._tables[unit_bytes] = DeviceTables(
                torch.from_numpy(self.segments).to(self.device),
                torch.from_numpy(units).to(self.device),
                unit_bytes,
            )
        return self._tables[unit_bytes]

    def device_tables(self) -> "list[torch.Tensor]":
        """Return the tables that lie on the device so far."""
        made = self._tables.values()
        return [table for tables in made for table in (tables.segments, tables.units)]


def _common_num_blocks(tensors: Sequence["torch.Tensor"]) -> int:
    first = tensors[0]
    for i, tensor in enumerate(tensors):
        if tensor.dim() == 0:
            raise ValueError(f"tensor {i} has no dimension; dimension 0 must be the block id")
        if tensor.device != first.device:
            raise ValueError(f"tensor {i} is on {tensor.device}, tensor 0 on {first.device}")
        if tensor.shape[0] != first.shape[0]:
            raise ValueError(
                f"tensor {i} has {tensor.shape[0]} blocks, tensor 0 has {first.shape[0]}: "
                "tensors of one group share their block ids"
            )
        if tensor.numel() == 0:
            raise ValueError(f"tensor {i} is empty: its shape is {tuple(tensor.shape)}")
    return int(first.shape[0])


def _runs(index: int, tensor: "torch.Tensor") -> list[tuple[int, int, int]]:
    """Return (address in block 0, block stride, bytes) of each contiguous run of a block."""
    width = tensor.element_size()
    block_stride = tensor.stride(0) * width
    if block_stride == 0 and tensor.shape[0] > 1:
        raise ValueError(f"tensor {index} has block stride 0: all its blocks are the same bytes")
    dims = sorted(
        (
            (s * width, n)
            for s, n in zip(tensor.stride()[1:], tensor.shape[1:], strict=True)
            if n > 1
        )
    )
    run_bytes = width
    while dims and dims[0][0] == run_bytes:
        run_bytes *= dims.pop(0)[1]
    extent = run_bytes
    for stride, size in dims:
        if stride < extent:
            raise ValueError(
                f"tensor {index} overlaps itself inside a block: shape {tuple(tensor.shape)}, "
                f"strides {tensor.stride()}"
            )
        extent = stride * (size - 1) + extent
    num_runs = prod(n for _, n in dims)
    if num_runs > MAX_RUNS:
        raise ValueError(
            f"tensor {index} is scattered: a block has {num_runs} runs of {run_bytes} bytes, "
            f"at most {MAX_RUNS} are supported"
        )
    offsets = (
        sum(stride * i for (stride, _), i in zip(dims, at, strict=True))
        for at in product(*(range(n) for _, n in dims))
    )
    return [(tensor.data_ptr() + offset, block_stride, run_bytes) for offset in sorted(offsets)]


def _united(runs: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Return runs that cover the same bytes, none of them twice where strides are equal."""
    united: list[tuple[int, int, int, int]] = []
    for begin, stride, size, owner in sorted(runs, key=lambda run: (run[1], run[0])):
        if united:
            first, last_stride, length, first_owner = united[-1]
            if stride == last_stride and begin < first + length:
                length = max(length, begin + size - first)
                united[-1] = (first, stride, length, first_owner)
                continue
        united.append((begin, stride, size, owner))
    return united


def reach_of(segments: Int64s, num_blocks: int) -> int:
    """Return the smallest d such that blocks whose ids differ by d or more never share a byte.

    It is 1 where blocks are apart, and more for views in granules, where a wide block lies over
    its neighbours' ids.
    """
    _check_strides(segments, num_blocks)
    reach = 1
    for stride in np.unique(segments[:, 1]):
        same = segments[segments[:, 1] == stride]
        if stride == 0:  # a single block
            stride = np.iinfo(np.int64).max  # noqa: PLW2901
        order = np.argsort(same[:, 0] % stride, kind="stable")
        starts = same[order, 0] % stride
        ends = starts + same[order, 2]
        # Apart on the circle of one stride means apart for every pair of ids.
        if np.all(ends[:-1] <= starts[1:]) and ends[-1] - starts[0] <= stride:
            continue
        reach = max(reach, _reach_of_overlapping(same, int(stride), num_blocks))
    return reach


def _check_strides(segments: Int64s, num_blocks: int) -> None:
    """Raise where segments of different strides share memory: no distance keeps all ids apart."""
    order = np.argsort(segments[:, 0], kind="stable")
    begins, strides, sizes = segments[order, :3].T
    ends = begins + (num_blocks - 1) * strides + sizes
    furthest = np.maximum.accumulate(ends)
    holders = np.maximum.accumulate(np.where(ends == furthest, np.arange(len(ends)), 0))
    mixed = (begins[1:] < furthest[:-1]) & (strides[1:] != strides[holders[:-1]])
    if np.any(mixed):
        at = int(np.argmax(mixed))
        i, j = order[holders[at]], order[at + 1]
        raise ValueError(
            f"segments {i} and {j} lie in the same memory with block strides of "
            f"{segments[i, 1]} and {segments[j, 1]} bytes"
        )


def _reach_of_overlapping(segments: Int64s, stride: int, num_blocks: int) -> int:
    reach = 1
    for i, (base, _, size, _) in enumerate(segments):
        # The furthest block whose segment j begins before this segment of block 0 ends.
        furthest = np.minimum((base + size - 1 - segments[:, 0]) // stride, num_blocks - 1)
        shared = segments[:, 0] + furthest * stride + segments[:, 2] > base
        shared[i] &= furthest[i] > 0
        if np.any(shared & (furthest == 0)):
            j = int(np.flatnonzero(shared & (furthest == 0))[0])
            raise ValueError(f"segments {i} and {j} of a block share bytes: a tensor given twice?")
        if np.any(shared & (furthest > 0)):
            reach = max(reach, int(furthest[shared & (furthest > 0)].max()) + 1)
    return reach
