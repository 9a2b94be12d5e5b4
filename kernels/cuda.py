"""CUDA C++ kernels through CuPy: compiled at the first call, launched on torch's stream."""

from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

ROOT = Path(__file__).parent
# The sources include nothing but common.cuh, so that they need no CUDA headers.
OPTIONS = ("-std=c++17", f"-I{ROOT}")


@cache
def kernel(operation: str, name: str) -> Any:
    """Return kernel ``name`` of ``<operation>/<operation>.cu``."""
    source = (ROOT / operation / f"{operation}.cu").read_text()
    return cupy.RawModule(code=source, options=OPTIONS).get_function(name)


def launch(
    function: Any,
    grid: tuple[int, int],
    device: torch.device,
    args: tuple[torch.Tensor | np.integer[Any], ...],
    shared_bytes: int = 0,
) -> None:
    """Launch ``function`` with ``(blocks, threads)`` on torch's current stream of ``device``.

    Tensors are passed by address, NumPy scalars by value.
    """
    values = tuple(np.int64(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args)
    handle = torch.cuda.current_stream(device).cuda_stream
    with cupy.cuda.Device(device.index or 0), _stream(handle):
        function((grid[0],), (grid[1],), values, shared_mem=shared_bytes)


@cache
def _stream(handle: int) -> Any:
    return cupy.cuda.Stream.from_external(_Handle(handle))


class _Handle:
    """A raw stream as the CUDA stream protocol wants it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)
