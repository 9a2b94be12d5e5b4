"""Run the CUDA C++ sources on the CPU, through the same launchers that feed a GPU.

The sources are built for the host against ``cuda_on_cpu.hpp`` and take the place of
``hybrid_blocks.kernels.cuda``. What stays unproven is what only a device has: the few lines of
PTX, the memory model and the speed.
"""

import ctypes
import re
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import hybrid_blocks.kernels
import numpy as np
import torch

SOURCES = Path(hybrid_blocks.kernels.__file__).parent
SHARED_BYTES = 232448  # an H100's or H200's opt-in limit


class HostKernel:
    """A kernel built for the host."""

    def __init__(self, operation: str, name: str) -> None:
        self.name = name
        self.max_dynamic_shared_size_bytes = 0
        self._run = getattr(_library(operation), f"run_{name}")

    def __call__(
        self, grid: tuple[int, int], values: list["np.integer[Any]"], shared_bytes: int
    ) -> None:
        assert shared_bytes <= self.max_dynamic_shared_size_bytes or shared_bytes == 0
        cells = [np.array([value]) for value in values]
        addresses = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        sizes = (ctypes.c_int * len(cells))(*(cell.itemsize for cell in cells))
        wrong = self._run(grid[0], grid[1], shared_bytes, addresses, sizes, len(cells))
        assert wrong == -1, f"{self.name}: argument {wrong} of {len(cells)} has the wrong size"


@cache
def _library(operation: str) -> ctypes.CDLL:
    source = SOURCES / operation / f"{operation}.cu"
    text = source.read_text()
    names = re.findall(r"__launch_bounds__\([^)]*\)\s+(\w+)\(", text)
    assert names, f"{source} has no kernel"
    barriers = "true" if "__syncthreads" in text else "false"
    runs = "\n".join(
        f'extern "C" int run_{name}(unsigned grid, unsigned threads, unsigned shared_bytes, '
        "void** values, const int* sizes, int count) "
        f"{{ return run({name}, {barriers}, grid, threads, shared_bytes, values, sizes, count); }}"
        for name in names
    )
    folder = Path(tempfile.mkdtemp(prefix="hybrid-blocks-cuda-on-cpu-"))
    unit, library = folder / "unit.cpp", folder / "unit.so"
    unit.write_text(f'#include "cuda_on_cpu.hpp"\n#include "{source}"\n{runs}\n')
    command = ["g++", "-std=c++20", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-shared"]
    command += ["-fPIC", "-Wno-unknown-pragmas", f"-I{Path(__file__).parent}"]
    command += [f"-I{SOURCES}", "-o", str(library), str(unit)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


@cache
def kernel(operation: str, name: str) -> HostKernel:
    return HostKernel(operation, name)


def launch(
    function: HostKernel,
    grid: tuple[int, int],
    device: torch.device,
    args: tuple["torch.Tensor | np.integer[Any]", ...],
    shared_bytes: int = 0,
) -> None:
    assert device.type == "cpu"
    assert grid[0] > 0
    values = [np.int64(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args]
    function(grid, values, shared_bytes)


def install() -> None:
    """Let the CUDA versions launch here; CuPy itself is not needed."""
    module: Any = ModuleType("hybrid_blocks.kernels.cuda")
    module.kernel, module.launch = kernel, launch
    sys.modules[module.__name__] = module
    hybrid_blocks.kernels.cuda = module  # type: ignore[attr-defined]

    class Device:
        attributes = {"MaxSharedMemoryPerBlockOptin": SHARED_BYTES}  # noqa: RUF012

        def __init__(self, index: int) -> None:
            assert index == 0

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(Device=Device)
    there = sys.modules.get("cupy")
    sys.modules["cupy"] = cupy
    for launcher in SOURCES.glob("*/cupy.py"):
        import_module(f"hybrid_blocks.kernels.{launcher.parent.name}.cupy")
    del sys.modules["cupy"]
    if there is not None:
        sys.modules["cupy"] = there
