"""Run the CUDA C++ sources on the CPU, through the launcher that feeds a GPU.

The sources are built for the host against ``cuda_on_cpu.hpp``, and ``fake_driver.cpp`` takes the
place of CuPy: parameters, rings, events and launches are those of a device. What stays unproven
is what only a device has: the few lines of PTX, the memory model and the speed.
"""

import atexit
import ctypes
import re
import shutil
import subprocess
import tempfile
from ctypes import byref, c_size_t, c_uint, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import hybrid_blocks.kernels
import numpy as np
from hybrid_blocks.kernels import cuda, driver

SOURCES = Path(hybrid_blocks.kernels.__file__).parent
HERE = Path(__file__).parent
FLAGS = ["-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC", "-Wall"]
FLAGS += ["-Wno-unknown-pragmas", "-Wno-unused-function"]


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hybrid-blocks-cuda-on-cpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _compile(unit: Path, library: Path) -> None:
    command = ["g++", "-std=c++20", *FLAGS, f"-I{HERE}", f"-I{SOURCES}", "-o", str(library)]
    subprocess.run([*command, str(unit), "-ldl"], check=True)


def host_library(text: str) -> Path:
    """Return the library of a source, headers in place, built for the host."""
    names = re.findall(r"__launch_bounds__\([^)]*\)\s+(\w+)\(", text)
    assert names, "the source has no kernel"
    assert "__syncthreads" not in text, "threads run to their end one after another"
    runs = "\n".join(
        f'extern "C" void run_{name}(unsigned grid, unsigned threads, void** values) '
        f"{{ run({name}, grid, threads, values); }}\n"
        f'extern "C" int parameters_{name}(size_t* sizes) '
        f"{{ return parameter_bytes({name}, sizes); }}"
        for name in names
    )
    stem = f"source-{sha256(text.encode()).hexdigest()[:16]}"
    unit, library = (_folder() / f"{stem}{end}" for end in (".cpp", ".so"))
    unit.write_text(f'#include "cuda_on_cpu.hpp"\n{text}\n{runs}\n')
    _compile(unit, library)
    return library


class FakeDriver(driver.BareDriver):
    """A stand-in for CuPy over ``fake_driver.cpp``, with what it counts and can be told."""

    def __init__(self) -> None:
        path = _folder() / "libfakecuda.so"
        _compile(HERE / "fake_driver.cpp", path)
        self.library = ctypes.CDLL(str(path))
        self.launch = _launcher(self.library)

    def module(self, text: str) -> c_void_p:
        """Return the library of a source."""
        module = c_void_p()
        self._call("cuModuleLoadData", byref(module), str(host_library(text)).encode())
        return module

    def function(self, module: c_void_p, name: str) -> int:
        """Return a kernel of a library."""
        function = c_void_p()
        self._call("cuModuleGetFunction", byref(function), module, name.encode())
        return function.value or 0

    def parameter_bytes(self, function: int) -> list[int]:
        """Return the size of each parameter of a kernel."""
        sizes: list[int] = []
        offset, size = c_size_t(), c_size_t()
        describe = self.library.cuFuncGetParamInfo
        while not describe(c_void_p(function), c_size_t(len(sizes)), byref(offset), byref(size)):
            sizes.append(size.value)
        return sizes

    def count(self, name: str) -> int:
        """Return ``launches``, ``waits``, ``copies`` or ``destroyed`` so far."""
        return ctypes.c_long.in_dll(self.library, f"fake_{name}").value

    def last(self, name: str) -> int:
        """Return the ``grid`` or the ``threads`` of the last launch."""
        return ctypes.c_uint.in_dll(self.library, f"fake_last_{name}").value

    def tell(self, name: str, *, value: int) -> None:
        """Set ``runs_kernels``, ``device_is_behind``, ``capturing`` or ``capture_status``."""
        ctypes.c_int.in_dll(self.library, f"fake_{name}").value = value


def _launcher(fake: Any) -> Any:
    """Return the fake's launch, which raises where the fake refuses it."""
    launch = fake.cuLaunchKernel
    launch.argtypes = [c_void_p, *[c_uint] * 7, *[c_void_p] * 3]
    launch.errcheck = _refuse
    return launch


def _refuse(status: int, call: Any, _: Any) -> int:
    if status:
        raise RuntimeError(f"{getattr(call, '__name__', call)} returned {status}")
    return status


@cache
def fake_driver() -> FakeDriver:
    """Return the driver that :func:`install` put in place."""
    return FakeDriver()


_lay_out = cuda.Launch.__init__
real_queues_driver = driver.queues_driver


def _checked(
    self: cuda.Launch, queue: Any, function: int, parameters: list[cuda.Parameter]
) -> None:
    """Lay a launch out whose parameters have the sizes of the kernel's: a device reads on."""
    given = [np.dtype(kind).itemsize for _, kind, _ in parameters]
    compiled = fake_driver().parameter_bytes(function)
    assert given == compiled, f"a kernel takes parameters of {compiled} bytes, was given {given}"
    _lay_out(self, queue, function, parameters)


def install() -> None:
    """Let the CUDA versions launch here."""
    vars(driver)["driver"] = vars(driver)["queues_driver"] = fake_driver
    vars(driver)["library"] = lambda: fake_driver().library
    cuda.Launch.__init__ = _checked  # type: ignore[method-assign]
