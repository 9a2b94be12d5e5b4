from pathlib import Path

import hybrid_blocks.kernels
import pytest
from cuda.bindings import nvrtc

ROOT = Path(hybrid_blocks.kernels.__file__).parent
SOURCES = sorted(ROOT.glob("*/*.cu"))


def compile_source(source: Path, arch: str) -> str:
    """Compile to machine code and return the log, warnings of the assembler included."""
    error, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    options = [
        "-std=c++17",
        f"-I{ROOT}",
        f"-arch={arch}",
        "--ptxas-options=-warn-spills",
        "--ptxas-options=-Werror",
    ]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode(errors="replace").strip("\0\n ")
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, text
    _, machine_code = nvrtc.nvrtcGetCUBINSize(program)
    assert machine_code > 0
    return text


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_compiles_without_a_warning_or_a_spilled_register(source: Path, arch: str) -> None:
    assert compile_source(source, arch) == ""


def test_every_operation_has_its_three_versions() -> None:
    operations = sorted(folder for folder in ROOT.iterdir() if (folder / "naive.py").exists())
    assert [folder.name for folder in operations] == [
        "convert_state",
        "copy_blocks",
        "gather_scatter",
        "move_slabs",
        "slot_mapping",
        "table_delta",
        "zero_blocks",
    ]
    for folder in operations:
        for version in ("triton.py", "cupy.py", f"{folder.name}.cu"):
            assert (folder / version).exists()


def test_a_warning_would_fail_the_compilation(tmp_path: Path) -> None:
    source = tmp_path / "warns.cu"
    source.write_text(
        'extern "C" __global__ void warns(int* p) { int unused; *p = 1; return; *p = 2; }'
    )
    assert "warning" in compile_source(source, "sm_90")
