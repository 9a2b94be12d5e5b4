"""The CUDA sources compiled as CuPy compiles them, without a device."""

from dataclasses import dataclass
from typing import Any

from cuda.bindings import nvrtc
from hybrid_blocks.kernels.sources import OPTIONS, source_of

OF_CUPY = "-ftz=true"  # which it adds to the options of every source


@dataclass(frozen=True, slots=True)
class Build:
    """NVRTC's output for one source and one architecture."""

    machine_code: bytes
    log: str


def compile_source(name: str, source: str, arch: str) -> Build:
    """Compile ``source``, headers in place, for ``arch`` (``"sm_90"``).

    Raises ``RuntimeError`` with NVRTC's log when it does not compile.
    """
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    assert not error, error
    try:
        options = [option.encode() for option in (*OPTIONS, OF_CUPY, f"-arch={arch}")]
        (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text = log.decode(errors="replace").strip("\0\n ")
        if failed:
            raise RuntimeError(f"NVRTC could not compile {name} for {arch}: {text}")
        return Build(_bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compile_operation(operation: str, arch: str) -> Build:
    """Compile ``<operation>/<operation>.cu`` as it will run on ``arch``."""
    return compile_source(f"{operation}.cu", source_of(operation), arch)


def _bytes(size_of: Any, read: Any, program: Any) -> bytes:
    error, size = size_of(program)
    assert not error, error
    buffer = bytearray(size)
    (error,) = read(program, buffer)
    assert not error, error
    return bytes(buffer)
