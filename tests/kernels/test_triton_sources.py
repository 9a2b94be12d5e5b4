"""The Triton sources compile for each architecture, with the names that tests list."""

import json
import os
from pathlib import Path

import hybrid_blocks
import pytest
from kernel_cases import DEVICE
from process import printed_by_python

SCRIPT = Path(__file__).with_name("compile_triton.py")

full = pytest.mark.full
# The assembler of another Triton takes other registers.
pytestmark = pytest.mark.skipif(
    DEVICE.type != "cpu", reason="reads what the Triton of the tests' own environment makes"
)


@pytest.mark.parametrize("arch", [pytest.param(80, marks=full), 90, pytest.param(100, marks=full)])
def test_triton_kernels_compile_to_16_byte_accesses(arch: int) -> None:
    package = Path(hybrid_blocks.__file__).parent.parent
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(package)}
    report = json.loads(printed_by_python(SCRIPT, arch, env=environment))
    assert len(report) == 12
    moves = [it for it in report if it["kernel"] != "convert_states._convert_states"]
    assert len(moves) == 6
    for compiled in moves:
        assert compiled["wide"] > 0, compiled
        assert compiled["narrow_stores"] == 0, compiled
        # An ordered walk may read bytes that the same launch wrote.
        assert compiled["read_only"] == 0, compiled
        assert compiled["stack_bytes"] == 0, compiled
        assert compiled["registers"] <= 64, compiled  # a program of 32 warps runs on an SM
    for compiled in report:
        if compiled in moves:
            assert not compiled["arithmetic"]
            continue
        # Each sum, product and quotient is rounded once, and none flushed to zero.
        rounded_once = {"add.rn.f32", "mul.rn.f32", "div.rn.f32"}
        assert set(compiled["arithmetic"]) <= rounded_once, compiled
        assert compiled["wide"] >= 9, compiled
        assert compiled["registers"] <= 128, compiled  # 16 warps run on an SM
