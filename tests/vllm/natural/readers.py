"""The functions of the installed vLLM that read how many blocks there are, or how long one is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import vllm

ROOT = Path(vllm.__file__).parent
NAMES = {"num_blocks", "num_gpu_blocks", "block_size", "mamba_block_size"}
_READ = re.compile(rf"\.\s*({'|'.join(NAMES)})\b")
"""Most files only pass such names on; parsing takes longest."""


def readers() -> dict[str, set[str]]:
    """Names that each function reads off an object, by ``path::qualified.name``."""
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not _READ.search(text):
            continue
        for function, name in _reads(ast.parse(text), ()):
            found.setdefault(f"{path.relative_to(ROOT)}::{function}", set()).add(name)
    return found


def _reads(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (*scope, node.name)
    if (
        isinstance(node, ast.Attribute)
        and node.attr in NAMES
        and isinstance(node.ctx, ast.Load)
        and not _is_own(node.value)
    ):
        yield ".".join(scope), node.attr
    for child in ast.iter_child_nodes(node):
        yield from _reads(child, scope)


def _is_own(value: ast.expr) -> bool:
    """Whether the object is the reader itself, which got the number from somebody listed."""
    return isinstance(value, ast.Name) and value.id in ("self", "cls")
