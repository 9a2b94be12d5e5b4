"""Print the places of a kind of cache groups: ``python tests/where.py ring``, or ``make where``."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORE = "rust/core/src/group/kind.rs"
SPECS = "python/hybrid_blocks/vllm/specs.py"


_FIELD = re.compile(r"\bconfig\.\w+\([^)]*\)")
"""A field of a ``config.json``, which may have the name of a kind."""


def variants() -> dict[str, str]:
    """Each kind of the core's table with its variant of ``GroupKind``."""
    rows = (ROOT / CORE).read_text().split("static ROWS")[1].split("];")[0]
    return dict(re.findall(r'name: "(\w+)",.*?make: \|[^|]*\| GroupKind::(\w+)', rows, re.DOTALL))


def specs() -> dict[str, list[str]]:
    """Each kind of the table of specs with vLLM's classes."""
    rows = {}
    for call in ast.walk(ast.parse((ROOT / SPECS).read_text())):
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "Row":
            name, spec, manager = call.args[:3]
            assert isinstance(name, ast.Constant)
            rows[str(name.value)] = [ast.unparse(spec), ast.unparse(manager)]
    return rows


def names(kind: str) -> re.Pattern[str]:
    """The names that a kind goes by.

    Raises:
        ValueError: no table has such a kind.
    """
    rust, vllm = variants(), specs()
    if kind not in rust and kind not in vllm:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(sorted({*rust, *vllm}))}")
    found = [rf"[\"`]{kind}[\"`(]"]
    if kind in rust:
        found.append(rf"\b(?:GroupKind|Self)::{rust[kind]}\b")
    # A name that all attention shares tells nothing of a kind.
    found += [rf"\b{name}\b" for name in vllm.get(kind, ()) if "FullAttention" not in name]
    return re.compile("|".join(found))


def places(kind: str) -> Iterator[tuple[str, int, str]]:
    """Each line that names a kind: its file, its number and its text."""
    pattern = names(kind)
    command = ["git", "ls-files", "-co", "--exclude-standard", "rust", "python", "tests", "docs"]
    for name in sorted({*subprocess.check_output(command, cwd=ROOT, text=True).split()}):
        path = ROOT / name
        if path.suffix in {".rs", ".py", ".pyi", ".md"} and path.is_file():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if pattern.search(_FIELD.sub("", line)):
                    yield name, number, line.strip()


if __name__ == "__main__":
    before = None
    try:
        for file, line_number, line_text in places(sys.argv[1] if sys.argv[1:] else ""):
            if file != before:
                sys.stdout.write(f"{file}\n")
            before = file
            sys.stdout.write(f"  {line_number}: {line_text}\n")
    except ValueError as error:
        sys.exit(str(error))
