"""The CUDA sources compile, and the host can load their machine code at once."""

from functools import cache
from pathlib import Path
from unittest import mock

import hybrid_blocks.kernels
import pytest
from hybrid_blocks.kernels import sources
from machine_code import MachineCode, kernels_of, longest_flight
from nvrtc import Build, compile_operation, compile_source

ROOT = Path(hybrid_blocks.kernels.__file__).parent
OPERATIONS = ("copy_blocks", "gather_scatter")
ARCHS = ("sm_80", "sm_90", "sm_100")

# Registers a thread. 64 let a block of 1,024 threads run; at 56 four blocks of 256 and more fit.
REGISTERS = {"copy_blocks": 56, "gather_blocks": 56, "scatter_blocks": 56}


@cache
def compiled(operation: str, arch: str) -> Build:
    return compile_operation(operation, arch)


@cache
def kernel(operation: str, name: str, arch: str) -> MachineCode:
    return kernels_of(compiled(operation, arch).machine_code)[name]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_runs_compiles_without_warning_and_fits_registers(operation: str, arch: str) -> None:
    assert compiled(operation, arch).log == ""
    for name, code in kernels_of(compiled(operation, arch).machine_code).items():
        assert code.registers <= REGISTERS.get(name, 64), name
        assert code.stack_bytes == 0, name
        assert code.count("LDL", "STL") == 0, name


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("copy_blocks", "copy_blocks"),
        ("gather_scatter", "gather_blocks"),
        ("gather_scatter", "scatter_blocks"),
    ],
)
def test_a_lane_has_eight_loads_of_16_bytes_in_flight(operation: str, name: str, arch: str) -> None:
    code = kernel(operation, name, arch)
    assert longest_flight(code, "LDG", "STG") == 8
    assert max(sum(line.startswith("STG") for line in block) for block in code.blocks) == 8
    wide = [block for block in code.blocks if longest_flight_of(block) == 8]
    assert any(all("128" in line for line in block if line.startswith("LDG")) for block in wide)
    assert code.count("LD.", "ST.") == 0  # nothing is left to the generic path


def longest_flight_of(block: tuple[str, ...]) -> int:
    return longest_flight(MachineCode(0, 0, (block,)), "LDG", "STG")


@pytest.mark.parametrize("arch", ARCHS)
def test_the_ordered_walk_reads_what_it_wrote(arch: str) -> None:
    code = kernel("copy_blocks", "copy_in_order", arch)
    batches = [block for block in code.blocks if longest_flight_of(block) == 4]
    wide = [
        block
        for block in batches
        if sum(line.startswith("LDG.E.128 ") for line in block) == 4
        and sum(line.startswith("STG") and "128" in line for line in block) == 4
    ]
    assert wide, "four pairs have their loads in flight together"
    assert not any("CONSTANT" in line for block in wide for line in block)


def test_every_operation_has_its_versions() -> None:
    operations = sorted(folder for folder in ROOT.iterdir() if (folder / "naive.py").exists())
    assert [folder.name for folder in operations] == ["convert_states", *OPERATIONS]
    for folder in operations:
        in_cuda = [(folder / name).exists() for name in ("cupy.py", f"{folder.name}.cu")]
        assert in_cuda == [folder.name in OPERATIONS] * 2
        assert (folder / "triton.py").exists()


WARNS = 'extern "C" __global__ void warns(int* p) { int unused; *p = 1; return; *p = 2; }'


def test_a_warning_would_be_seen() -> None:
    assert "warning" in compile_source("warns.cu", WARNS, "sm_90").log


def test_a_source_that_does_not_compile_is_an_error_with_the_log() -> None:
    with pytest.raises(
        RuntimeError, match=r"(?s)could not compile wrong.cu for sm_90: .*undefined"
    ):
        compile_source("wrong.cu", "int a = b;", "sm_90")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_text_that_cupy_hashes_has_the_headers_in_place(operation: str) -> None:
    text = sources.source_of(operation)
    assert "#include" not in text
    edited = dict(sources.sources())
    edited["common.cuh"] = edited["common.cuh"].replace("UNROLL = 8", "UNROLL = 4")
    with mock.patch.object(sources, "sources", return_value=edited):
        assert sources.source_of(operation) != text


def test_the_source_hash_covers_every_version() -> None:
    before = sources.source_hash()
    assert len(before) == 16
    read = Path.read_bytes

    def edited(path: Path) -> bytes:
        return read(path) + (b"#" if path.name == "triton.py" else b"")

    sources.source_hash.cache_clear()
    with mock.patch.object(Path, "read_bytes", edited):
        assert sources.source_hash() != before
    sources.source_hash.cache_clear()
    assert sources.source_hash() == before
