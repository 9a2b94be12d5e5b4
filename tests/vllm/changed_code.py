"""Prints the functions that the adapter stands for whose code differs between two vLLM trees.

``python changed_code.py OLD NEW``, both folders named ``vllm``. The surface compares names and
parameters; this shows which bodies to read before a release is called tested.
"""

import ast
import sys
import tomllib
from importlib.resources import files
from pathlib import Path


def bodies(tree: Path, owner: str, names: list[str]) -> dict[str, str | None]:
    """Return the code of an owner's functions that are there, without comments and docstrings."""
    module, _, cls = owner.partition(":")
    path = tree.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():
        return dict.fromkeys(names)
    scope = ast.parse(path.read_text()).body
    if cls:
        scope = next((n.body for n in scope if isinstance(n, ast.ClassDef) and n.name == cls), [])
    found = {node.name: node for node in scope if isinstance(node, ast.FunctionDef)}
    return {name: _code(found[name]) if name in found else None for name in names}


def _code(function: ast.FunctionDef) -> str:
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:] or [ast.Pass()]
    return ast.unparse(function)


def main(old: Path, new: Path) -> None:
    """Print one line for each function that changed, appeared or went."""
    recorded = tomllib.loads((files("hybrid_blocks.vllm.surface") / "recorded.toml").read_text())
    for owner, methods in recorded["callables"].items():
        before, after = bodies(old, owner, list(methods)), bodies(new, owner, list(methods))
        for name in methods:
            if before[name] != after[name]:
                state = (
                    "gone" if after[name] is None else "new" if before[name] is None else "changed"
                )
                print(f"  {state:8}{owner.replace(':', '.').rstrip('.')}.{name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
