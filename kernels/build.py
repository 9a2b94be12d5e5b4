"""NVRTC builds of the CUDA sources: flags spelled out, headers in the key, one hash of all."""

import os
import tempfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent

# Every choice that changes machine code is named: nothing is left to a compiler's default.
OPTIONS = (
    "-std=c++17",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--fmad=false",  # a fused multiply-add would round once where the reference rounds twice
    "--dopt=on",
)


@dataclass(frozen=True, slots=True)
class Build:
    """What NVRTC made of one operation for one architecture."""

    machine_code: bytes
    assembly: str
    log: str


@cache
def sources() -> dict[str, str]:
    """Return every CUDA source by its path below this folder, with its text."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted((*ROOT.glob("*.cuh"), *ROOT.glob("*/*.cu*")))
    }


@cache
def source_hash() -> str:
    """Return 16 hex digits that change with any file of this folder, CUDA, Triton or launcher."""
    digest = sha256(" ".join(OPTIONS).encode())
    for path in sorted((*ROOT.rglob("*.py"), *ROOT.rglob("*.cu*"))):
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_source(name: str, text: str, arch: str) -> Build:
    """Compile ``text`` for ``arch`` (``"sm_90"``); headers come from :func:`sources`.

    Raises ``RuntimeError`` with NVRTC's log when it does not compile.
    """
    from cuda.bindings import nvrtc  # noqa: PLC0415

    headers = {path: body for path, body in sources().items() if path.endswith(".cuh")}
    error, program = nvrtc.nvrtcCreateProgram(
        text.encode(),
        name.encode(),
        len(headers),
        [body.encode() for body in headers.values()],
        [path.encode() for path in headers],
    )
    _check(error, "nvrtcCreateProgram")
    try:
        options = [option.encode() for option in (*OPTIONS, f"-arch={arch}")]
        (compiled,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if compiled:
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
    path = f"{operation}/{operation}.cu"
    return compile_source(path, sources()[path], arch)


def machine_code(operation: str, arch: str) -> bytes:
    """Return the operation's machine code for ``arch``, from the disk where it was built before.

    The key is a hash of the source, all headers, the options, the architecture and NVRTC's
    version. The folder is ``$HYBRID_BLOCKS_CACHE``, else ``~/.cache/hybrid_blocks``; where it
    cannot be written, each process compiles anew.
    """
    kept = _folder() / f"{operation}-{arch}-{_key(operation, arch)}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        code = compile_operation(operation, arch).machine_code
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(code)
        Path(file.name).replace(kept)  # at once: another process never reads half of it
    except OSError:
        pass
    return code


def _folder() -> Path:
    chosen = os.environ.get("HYBRID_BLOCKS_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "hybrid_blocks"


def _key(operation: str, arch: str) -> str:
    from cuda.bindings import nvrtc  # noqa: PLC0415

    texts = sources()
    own = f"{operation}/{operation}.cu"
    parts = [arch, *OPTIONS, *(str(part) for part in nvrtc.nvrtcVersion()), texts[own]]
    parts += [path + "\0" + text for path, text in texts.items() if path.endswith(".cuh")]
    return sha256("\0".join(parts).encode()).hexdigest()[:24]


def _check(error: Any, call: str) -> None:
    if error:
        raise RuntimeError(f"{call} failed: {error}")


def _bytes(size_of: Any, read: Any, program: Any) -> bytes:
    error, size = size_of(program)
    _check(error, size_of.__name__)
    buffer = bytearray(size)
    (error,) = read(program, buffer)
    _check(error, read.__name__)
    return bytes(buffer)


def _text(size_of: Any, read: Any, program: Any) -> str:
    return _bytes(size_of, read, program).decode(errors="replace").strip("\0\n ")
