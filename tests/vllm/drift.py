"""``python drift.py OLD``: how the vLLM that Python imports differs from the record.

Names, parameters and attributes come first. Then comes code that differs from the vLLM in folder
OLD: functions that the adapter calls or stands for, and files that the planner follows. Below each
line stand the files of this package to open.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import adapter_reads
from hybrid_blocks.vllm.surface import differences, part_differences, support
from hybrid_blocks.vllm.surface.recorded import Surface

PYTHON = adapter_reads.ROOT / "python/hybrid_blocks"
MOST_FILES = 3
_FOLLOWED = re.compile(r"``vllm/([\w/]+(?:\.py)?)``")


def to_open(dotted: str) -> str:
    """Return the files of the adapter that name a member of vLLM most often, or else its class."""
    owner, _, name = dotted.rpartition(".")
    word = re.compile(rf"\b{re.escape(name)}\b")
    files = [*adapter_reads.ADAPTER, *adapter_reads.RUST, *(PYTHON / "offload").rglob("*.py")]
    counts = {file: len(word.findall(file.read_text())) for file in files}
    most = sorted(filter(counts.__getitem__, counts), key=lambda it: (-counts[it], str(it)))
    return _named(most[:MOST_FILES]) if most or not owner else to_open(owner)


def _named(files: list[Path]) -> str:
    return ", ".join(str(file.relative_to(adapter_reads.ROOT)) for file in files)


def _code(tree: ast.AST) -> str:
    """Return code without comments and docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(node) is not None:
                    node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def bodies(tree: Path, owner: str, names: list[str]) -> dict[str, str | None]:
    """Return the code of an owner's functions that are there."""
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


def changed(old: Path, new: Path) -> Iterator[tuple[str, str]]:
    """Give each function that changed, appeared or went, and the files to open."""
    for owner, methods in Surface(support.TESTED[-1]).recorded["callables"].items():
        before, after = bodies(old, owner, list(methods)), bodies(new, owner, list(methods))
        for name in methods:
            if before[name] != after[name]:
                state = "gone" if after[name] is None else "changed" if before[name] else "new"
                dotted = f"{owner.replace(':', '.').rstrip('.')}.{name}"
                yield f"{state:8}{dotted}", to_open(dotted)


def followed(old: Path, new: Path) -> Iterator[tuple[str, str]]:
    """Give each changed file or folder that the planner follows, and the followers."""
    followers: dict[str, list[Path]] = {}
    for file in sorted(PYTHON.rglob("*.py")):
        for path in _FOLLOWED.findall(file.read_text()):
            followers.setdefault(path, []).append(file)
    for path, files in followers.items():
        if _all_code(old / path) != _all_code(new / path):
            yield f"changed vllm/{path}", _named(files)


def _all_code(place: Path) -> list[str]:
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [_code(ast.parse(file.read_text())) for file in files if file.exists()]


def main(version: str, old: Path, new: Path) -> bool:
    """Print all differences; return whether the record is wrong for this release."""
    parts = {str(tier): lines for tier, lines in differences(version).items()}
    parts["offload"] = part_differences("offload", version)
    parts["recorder"] = part_differences("recorder", version)
    parts["prefill checkpoints"] = part_differences("forward", version)
    print(f"vLLM {version}, compared with the record of {support.nearest(version)}:")
    for part, lines in parts.items():
        print(f"  {part}: " + ("equal" if not lines else f"{len(lines)} differences"))
        for line in lines:
            print(f"    {line}\n      {to_open(line.split()[0])}")
    print(f"code that the package calls, stands for or follows, compared with {old}:")
    for line, files in (*changed(old, new), *followed(old, new)):
        print(f"  {line}\n      {files}")
    return any(parts.values())


if __name__ == "__main__":
    import vllm

    sys.exit(main(vllm.__version__, Path(sys.argv[1]), Path(vllm.__file__).parent))
