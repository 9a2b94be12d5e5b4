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
    assembly: str
    log: str


def compile_source(name: str, text: str, arch: str) -> Build:
    """Compile ``text``, headers in place, for ``arch`` (``"sm_90"``).

    Raises ``RuntimeError`` with NVRTC's log when it does not compile.
    """
    error, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], [])
    assert not error, error
    try:
        options = [option.encode() for option in (*OPTIONS, OF_CUPY, f"-arch={arch}")]
        (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if failed:
            raise RuntimeError(f"NVRTC could not compile {name} for {arch}: {log}")
        return Build(
            _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program),
            _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program),
            log,
        )
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


def _text(size_of: Any, read: Any, program: Any) -> str:
    return _bytes(size_of, read, program).decode(errors="replace").strip("\0\n ")
