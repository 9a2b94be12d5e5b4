"""The device, the versions under test and groups of odd tensors, shared by the kernel tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import cuda_on_cpu
import numpy as np
import numpy.typing as npt
import torch
from hybrid_blocks.kernels import Backend, BlockTensors, backend
from hybrid_blocks.kernels.moves import Moves
from hypothesis import settings
from hypothesis import strategies as st

Int32s = npt.NDArray[np.int32]

DEVICE = torch.device(os.environ.get("HYBRID_BLOCKS_TEST_DEVICE", "cpu"), 0)
if DEVICE.type == "cpu":
    DEVICE = torch.device("cpu")
torch.set_num_threads(1)  # the tensors are small

FAST: tuple[Backend, ...] = ("triton", "cupy")
BACKENDS: tuple[Backend, ...] = ("naive", *FAST)

# Triton's interpreter and emulated thread blocks take milliseconds a program.
FEW = settings(max_examples=15, deadline=None)
MANY = settings(max_examples=200, deadline=None)

DTYPES = (torch.uint8, torch.int16, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64)

if DEVICE.type == "cpu":
    cuda_on_cpu.install()


@contextmanager
def running(name: Backend) -> Iterator[Backend]:
    """Let version ``name`` run on the device under test, interpreted or emulated on the CPU."""
    if DEVICE.type != "cpu" or name == "naive":
        yield name
        return
    with (
        mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}),
        mock.patch.object(backend, "usable_backends", return_value=BACKENDS),
        mock.patch.dict(backend._chosen),
        # The interpreter computes by NumPy, which warns where a device does not.
        np.errstate(over="ignore", under="ignore", invalid="ignore"),
    ):
        yield name


def int32s(*values: int) -> Int32s:
    return np.array(values, np.int32)


def listed_on_device(src: torch.Tensor, dst: torch.Tensor) -> Moves:
    """Return moves whose lists the host does not read, which on the CPU no public call makes."""
    moves = Moves.__new__(Moves)
    moves.src, moves.dst = src, dst
    moves.order, moves.free, moves.on_host = "list", True, False
    return moves


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the logical elements, so that NaNs compare equal to themselves."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@dataclass
class OddGroup:
    """Tensors in random buffers; ``twin`` makes the same tensors over copied bytes."""

    buffers: list[torch.Tensor]
    views: list[tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int]]

    def __post_init__(self) -> None:
        self.tensors = [
            self.buffers[b].view(dtype).as_strided(shape, strides, offset)
            for b, dtype, shape, strides, offset in self.views
        ]
        self.blocks = BlockTensors(self.tensors)

    def twin(self) -> "OddGroup":
        return OddGroup([buffer.clone() for buffer in self.buffers], self.views)

    @property
    def num_blocks(self) -> int:
        return self.blocks.num_blocks

    def same_bytes(self, other: "OddGroup") -> bool:
        """Compare whole buffers: the padding between blocks must not be written either."""
        pairs = zip(self.buffers, other.buffers, strict=True)
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)


@st.composite
def odd_groups(draw: st.DrawFn) -> OddGroup:
    """Draw one to three tensors of differing dtype, shape, order of dimensions and padding.

    Half of the buffers are poisoned with bytes that are NaN in every floating format.
    """
    num_blocks = draw(st.integers(1, 7))
    buffers, views = [], []
    for index in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(DTYPES))
        inner = draw(st.lists(st.integers(1, 3), max_size=2))
        inner.append(draw(st.sampled_from((8, 24, 257, 1040, 4500))) // dtype.itemsize)
        # The last dimension stays innermost, or every element would be a run of its own.
        order = [*draw(st.permutations(range(len(inner)))), len(inner)]
        shape = (num_blocks, *inner)
        strides, extent = [0] * len(shape), 1
        for dim in reversed(order):
            strides[dim] = extent
            extent *= shape[dim]
            extent += draw(st.sampled_from((0, 0, 1, 3, 16)))
        start = draw(st.sampled_from((0, 0, 1, 5, 16)))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 999)) + index)
        length = (start + extent) * dtype.itemsize
        if draw(st.booleans()):
            filled = torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)
        else:
            filled = torch.full((length,), 0xFF, dtype=torch.uint8)
        buffers.append(filled.to(DEVICE))
        views.append((index, dtype, shape, tuple(strides), start))
    return OddGroup(buffers, views)
