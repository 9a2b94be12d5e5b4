"""Compile every Triton kernel for a target without a device; print its global accesses as JSON.

A process of its own: under ``TRITON_INTERPRET`` the kernels are not compilable.
"""

import json
import re
import sys
from importlib import import_module
from typing import Any

import triton
from machine_code import kernels_of
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BLOCKS = {"segments": "*i64", "units": "*i32", "num_units": "i32", "total": "i64"}
UNIT = {"WIDTH": 16, "UNIT_BYTES": 8192, "ROWS": 1}
FEW_SMS = UNIT | {"ROWS": 8}
POINTERS = {"src", "dst", "ids", "places"}
HEADS: dict[str, Any] = {"NUMBERS": 16384, "BLOCK": 16384, "SAME_WIDTH": 16, "HEAD_WIDTH": 16}
HEADS["UNIT_BYTES"] = 8192

KERNELS: list[tuple[str, str, dict[str, Any]]] = [
    ("copy_blocks", "_copy_blocks", UNIT | {"ORDERED": False}),
    ("copy_blocks", "_copy_blocks", UNIT | {"ORDERED": True}),
    ("copy_blocks", "_copy_blocks", FEW_SMS | {"ORDERED": False}),
    ("gather_scatter", "_move_records", UNIT | {"GATHER": True}),
    ("gather_scatter", "_move_records", FEW_SMS | {"GATHER": True}),
    ("gather_scatter", "_move_records", FEW_SMS | {"GATHER": False}),
    *(
        (
            "convert_states",
            "_convert_states",
            HEADS | {"FORMAT": name, "KEEPS": keeps, "CODE_WIDTH": 16 if name == "bf16" else 4},
        )
        for name in ("bf16", "fp8", "int8")
        for keeps in (True, False)
    ),
]


def type_of(parameter: str) -> str:
    """Return Triton's type of a kernel's run-time parameter."""
    if parameter in POINTERS:
        return "*i32"
    if parameter == "pages":
        return "*i64"
    if parameter in {"staging", "granule", "num_same"}:
        return "i64"
    return BLOCKS.get(parameter, "i32")


def main(arch: int) -> None:
    """Print what became of each kernel for compute capability ``arch``."""
    report = []
    for operation, name, constants in KERNELS:
        module = import_module(f"hybrid_blocks.kernels.{operation}.triton")
        kernel = getattr(module, name)
        signature = {p: "constexpr" if p in constants else type_of(p) for p in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        target = GPUTarget("cuda", arch, 32)
        converts = operation == "convert_states"
        warps = 16 if converts else 32 if constants["ROWS"] == 8 else 4
        options = {"num_warps": warps, "enable_fp_fusion": not converts}
        compiled = triton.compile(source, target=target, options=options)
        ptx = compiled.asm["ptx"]
        machine = kernels_of(compiled.asm["cubin"]).values()
        accesses = re.findall(r"(?:ld|st)\.global\S*", ptx)
        report.append(
            {
                "kernel": f"{operation}.{name}",
                "constants": constants,
                "wide": sum("v4.b32" in access for access in accesses),
                "narrow_stores": sum(a.startswith("st") and "v4.b32" not in a for a in accesses),
                "read_only": sum(".nc" in access for access in accesses),
                "registers": max(code.registers for code in machine),
                "arithmetic": sorted(
                    set(re.findall(r"\b(?:add|sub|mul|fma|mad|div)\S*\.f32\b", ptx))
                ),
                "stack_bytes": max(code.stack_bytes for code in machine),
            }
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]))
