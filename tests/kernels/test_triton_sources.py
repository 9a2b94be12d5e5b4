import json
import os
import subprocess
import sys
from pathlib import Path

import hybrid_blocks
import pytest
from kernel_cases import DEVICE

SCRIPT = Path(__file__).with_name("compile_triton.py")
COPIERS = ("copy_blocks", "zero_blocks", "gather_scatter")
MOVERS = (*COPIERS, "convert_state")

full = pytest.mark.full
# The assembler of another Triton takes other registers.
pytestmark = pytest.mark.skipif(
    DEVICE.type != "cpu", reason="reads what the Triton of the tests' own environment makes"
)


@pytest.mark.parametrize("arch", [pytest.param(80, marks=full), 90, pytest.param(100, marks=full)])
def test_triton_kernels_compile_to_16_byte_accesses_and_no_fused_rounding(arch: int) -> None:
    package = Path(hybrid_blocks.__file__).parent.parent
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(arch)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report) == 16
    for compiled in report:
        moves = compiled["kernel"].startswith(MOVERS)
        assert (compiled["wide"] > 0) == moves, compiled
        if compiled["kernel"].startswith(COPIERS):
            assert compiled["narrow_stores"] == 0, compiled
        # What an ordered walk reads may have been written by the same launch.
        assert compiled["read_only"] == 0, compiled
        assert compiled["fused"] == 0, compiled
        assert compiled["stack_bytes"] == 0, compiled
        # 64 let a program of 32 warps run on an SM, 96 one of 16.
        copies = compiled["kernel"].startswith(COPIERS)
        assert compiled["registers"] <= (64 if copies else 96), compiled
