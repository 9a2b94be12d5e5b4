"""Machine code of a kernel, read with the disassembler that Triton's wheel ships."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, slots=True)
class MachineCode:
    """One kernel: registers a thread, bytes of stack a thread, and its basic blocks."""

    registers: int
    stack_bytes: int
    blocks: tuple[tuple[str, ...], ...]

    def count(self, *prefixes: str) -> int:
        """Return how many instructions begin with one of ``prefixes``."""
        return sum(line.startswith(prefixes) for block in self.blocks for line in block)


def kernels_of(machine_code: bytes) -> dict[str, MachineCode]:
    """Return the kernels of a cubin by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(machine_code)
        usage = _run("cuobjdump", "--dump-resource-usage", path)
        code = _run("nvdisasm", "-c", path)
    sections = re.split(r"^\s*\.section\s+\.text\.(\w+)", code, flags=re.MULTILINE)
    blocks = dict(zip(sections[1::2], map(_blocks, sections[2::2]), strict=True))
    return {
        name: MachineCode(int(registers), int(stack) + int(local), blocks[name])
        for name, registers, stack, local in re.findall(
            r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage
        )
    }


def longest_flight(code: MachineCode, load: str, store: str) -> int:
    """Return how many loads a thread issues before the first store that follows them."""
    longest = current = 0
    for block in code.blocks:
        current = 0
        for line in block:
            if line.startswith(load):
                current += 1
                longest = max(longest, current)
            elif line.startswith(store):
                current = 0
    return longest


def _blocks(section: str) -> tuple[tuple[str, ...], ...]:
    """Cut a disassembly at its labels; predicates are left out."""
    blocks: list[list[str]] = [[]]
    for line in section.splitlines():
        if re.match(r"\.L_\w+:", line):
            blocks.append([])
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", line):
            blocks[-1].append(found[1])
    return tuple(map(tuple, blocks))


def _run(tool: str, *arguments: object) -> str:
    command = [str(TOOLS / tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
