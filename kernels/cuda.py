"""CUDA C++ kernels: loaded once a device, launched from parameters that were laid out before."""

from collections.abc import Callable
from ctypes import addressof, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from hybrid_blocks.kernels import driver as drivers
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch import CUDA_UNIT_BYTES
from hybrid_blocks.kernels.launch_queue import LaunchQueue
from hybrid_blocks.kernels.sources import source_of

if TYPE_CHECKING:
    import torch

# Pairs that travel in a kernel's parameters: 2 KiB of the 4 KiB that every driver takes.
INLINE_PAIRS = 256

# As in common.cuh: the ids themselves, unless pointers say where they lie on the device.
PAIRS = np.dtype([("src", "u8"), ("dst", "u8"), ("inlined", "i4", (2 * INLINE_PAIRS,))])

Parameter = tuple[str, Any, Any]  # name, dtype, value; None for what each call sets


class Launch:
    """A kernel with its parameters in place, for one queue; a call sets what differs.

    ``parameters`` are in the kernel's order, tensors given by address.
    """

    def __init__(self, queue: LaunchQueue, function: int, parameters: list[Parameter]) -> None:
        self.queue = queue
        self.function = function
        self._launch = drivers.driver().launch
        layout = np.dtype([(field, kind) for field, kind, _ in parameters])
        self._values = np.zeros(1, layout)
        for field, _, value in parameters:
            if value is not None:
                self._values[field] = value
        at = self._values.ctypes.data
        offsets = [layout.fields[field][1] for field, _, _ in parameters]  # type: ignore[index]
        self._pointers = (c_void_p * len(offsets))(*(at + offset for offset in offsets))
        self._addresses = addressof(self._pointers)
        #: Pieces of work a block is cut into, for the kernels that move blocks.
        self.num_units = next((value for field, _, value in parameters if field == "num_units"), 0)
        self._views: dict[str, Any] = {field: self._values[field] for field, _, _ in parameters}
        for field, kind, _ in parameters:
            if kind is PAIRS:
                pairs = self._values[field]
                self._inlined = pairs["inlined"][0]
                self._listed = pairs["src"], pairs["dst"]

    def __call__(
        self,
        lists: tuple[IdList, IdList],
        grid: tuple[int, int],
        **values: int,
    ) -> None:
        """Launch ``grid`` (blocks, threads a block) over ``lists``, with the call's ``values``."""
        if not self.queue.is_current_device():
            with self.queue.activate():
                self(lists, grid, **values)
            return
        with self.queue.lock:
            self._set_lists(lists)
            for field, value in values.items():
                self._views[field][0] = value
            blocks, threads = grid
            where = (0, self.queue.handle, self._addresses, 0)
            try:
                self._launch(self.function, blocks, 1, 1, threads, 1, 1, *where)
            except RuntimeError:  # perhaps only because this thread has no current context yet
                with self.queue.activate():
                    self._launch(self.function, blocks, 1, 1, threads, 1, 1, *where)
            self.queue.done()

    def _set_lists(self, lists: tuple[IdList, IdList]) -> None:
        src, dst = lists
        if isinstance(src, np.ndarray) and len(src) <= INLINE_PAIRS:
            self._listed[0][0] = 0
            self._inlined[: len(src)] = src
            self._inlined[INLINE_PAIRS : INLINE_PAIRS + len(src)] = dst
            return
        for pointer, address in zip(self._listed, self.queue.addresses(lists), strict=True):
            pointer[0] = address


def prepared(
    group: BlockTensors,
    queue: LaunchQueue,
    operation: str,
    name: str,
    parameters: Callable[[BlockTensors], list[Parameter]],
) -> Launch:
    """Return the launch of kernel ``name`` for ``group`` and ``queue``, laid out at first use.

    ``group.launches`` keeps it; ``parameters(group)`` is called where it has none yet.
    """
    key = (queue.handle, name)
    launch: Launch | None = group.launches.get(key)
    if launch is None:
        with queue.lock, queue.activate():
            function = kernel(operation, name, queue.device)
            launch = Launch(queue, function, parameters(group))
            for table in group.device_tables():
                queue.guard(table, own_stream=True)
            group.launches[key] = launch
    return launch


def tables_of(group: BlockTensors) -> list[Parameter]:
    """Return the parameters with which every block kernel begins."""
    tables = group.tables(CUDA_UNIT_BYTES)
    return [
        ("segments", "u8", tables.segments.data_ptr()),
        ("units", "u8", tables.units.data_ptr()),
        ("num_units", "i4", tables.num_units),
    ]


def kernel(operation: str, name: str, device: "torch.device") -> int:
    """Return kernel ``name`` of ``<operation>/<operation>.cu``, loaded on ``device``."""
    return drivers.driver().function(_module(operation, device.index or 0), name)


@cache
def _module(operation: str, ordinal: int) -> Any:  # noqa: ARG001 - a module for each device
    return drivers.driver().module(source_of(operation))
