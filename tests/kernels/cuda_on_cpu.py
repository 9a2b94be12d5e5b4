"""Run the CUDA C++ sources on the CPU, through the launcher that feeds a GPU.

The sources are built for the host against ``cuda_on_cpu.hpp``, and ``fake_driver.cpp`` takes the
place of libcuda: parameters, rings, events and launches are those of a device. What stays unproven
is what only a device has: the few lines of PTX, the memory model and the speed.
"""

import atexit
import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import hybrid_blocks.kernels
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


def compile_host(name: str, text: str) -> ctypes.CDLL:
    """Build C++ that includes ``cuda_on_cpu.hpp`` and load it."""
    unit, library = (_folder() / f"{name}{end}" for end in (".cpp", ".so"))
    unit.write_text(text)
    _compile(unit, library)
    return ctypes.CDLL(str(library))


def _compile(unit: Path, library: Path) -> None:
    command = ["g++", "-std=c++20", *FLAGS, f"-I{HERE}", f"-I{SOURCES}", "-o", str(library)]
    subprocess.run([*command, str(unit), "-ldl"], check=True)


@cache
def host_library(operation: str, arch: str = "host") -> bytes:  # noqa: ARG001
    """Return the path of an operation built for the host, in place of its machine code."""
    source = SOURCES / operation / f"{operation}.cu"
    text = source.read_text()
    names = re.findall(r"__launch_bounds__\([^)]*\)\s+(\w+)\(", text)
    assert names, f"{source} has no kernel"
    barriers = "true" if "__syncthreads" in text else "false"
    runs = "\n".join(
        f'extern "C" void run_{name}(unsigned grid, unsigned threads, unsigned shared_bytes, '
        f"void** values) {{ run({name}, {barriers}, grid, threads, shared_bytes, values); }}\n"
        f'extern "C" int parameters_{name}(size_t* sizes) '
        f"{{ return parameter_bytes({name}, sizes); }}"
        for name in names
    )
    unit, library = (_folder() / f"{operation}{end}" for end in (".cpp", ".so"))
    unit.write_text(f'#include "cuda_on_cpu.hpp"\n#include "{source}"\n{runs}\n')
    _compile(unit, library)
    return str(library).encode()


class FakeDriver(driver.Driver):
    """``fake_driver.cpp`` with what it counts and can be told."""

    def __init__(self) -> None:
        path = _folder() / "libfakecuda.so"
        _compile(HERE / "fake_driver.cpp", path)
        super().__init__(str(path))
        self._fake = ctypes.CDLL(str(path))

    def count(self, name: str) -> int:
        """Return ``launches``, ``waits`` or ``copies`` so far."""
        return ctypes.c_long.in_dll(self._fake, f"fake_{name}").value

    def last(self, name: str) -> int:
        """Return the ``grid`` or the ``threads`` of the last launch."""
        return ctypes.c_uint.in_dll(self._fake, f"fake_last_{name}").value

    def tell(self, name: str, *, value: bool) -> None:
        """Set ``runs_kernels``, ``device_is_behind`` or ``capturing``."""
        ctypes.c_int.in_dll(self._fake, f"fake_{name}").value = int(value)


@cache
def fake_driver() -> FakeDriver:
    """Return the driver that :func:`install` put in place."""
    return FakeDriver()


def install() -> None:
    """Let the CUDA versions launch here."""
    vars(cuda)["machine_code"] = host_library
    driver.driver = fake_driver
