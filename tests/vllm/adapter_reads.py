"""Names of vLLM in the adapter's sources, read off their syntax."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "python/hybrid_blocks/vllm"
ADAPTER = sorted(file for file in PLUGIN.rglob("*.py") if file.parent.name != "surface")
PACKAGE = "hybrid_blocks.vllm"
GEOMETRY = sorted((ROOT / "python/hybrid_blocks/geometry").glob("*.py"))
RUST = sorted((ROOT / "rust/vllm/src").rglob("*.rs"))
STATES = ROOT / "kernels/convert_states/pools.py"
FIGURES = ROOT / "python/hybrid_blocks/metrics.py"
VARIABLES = ROOT / "python/hybrid_blocks/variables.py"
STUB = ROOT / "python/hybrid_blocks/_core/vllm.pyi"
_IN_RUST = re.compile(r'(?:intern!\([^"]*|(?:number|size|list|object|truth|presence) )"(\w+)"')
_WRITTEN = re.compile(r'attributes\.set_item\(intern!\([^"]*"(\w+)"')
_BY_NAME = {"getattr", "hasattr"}


def _trees(files: list[Path]) -> list[ast.Module]:
    return [ast.parse(file.read_text()) for file in files]


def imports() -> dict[str, set[str]]:
    """Return the names that are imported from each of vLLM's modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for tree in _trees(ADAPTER):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and _is_vllm(node.module):
                found[str(node.module)].update(alias.name for alias in node.names)
    return dict(found)


def imported_with(*modules: str) -> set[str]:
    """Return what is imported from vLLM, as ``module:name``, once ``modules`` are imported."""
    waiting, seen, names = list(modules), set(), set()
    while waiting:
        module = waiting.pop()
        if module not in seen and _file(module).exists():
            seen.add(module)
            for node in ast.parse(_file(module).read_text()).body:
                match node:
                    case ast.ImportFrom(module=str(source), names=aliases):
                        if source.startswith(PACKAGE):
                            waiting += [source, *(f"{source}.{alias.name}" for alias in aliases)]
                        elif _is_vllm(source):
                            names |= {f"{source}:{alias.name}" for alias in aliases}
                    case ast.Import(names=[ast.alias(name="vllm")]):
                        names.add("vllm:__version__")
    return names


def _file(module: str) -> Path:
    path = PLUGIN.joinpath(*module.removeprefix(PACKAGE).split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def attributes() -> set[str]:
    """Return the names of attributes that the adapter reads, writes or calls on any object.

    Of Python only modules that import vLLM count, of Rust those that are given its objects.
    """
    names = {name for file in RUST for name in _IN_RUST.findall(file.read_text())}
    for tree in _trees(ADAPTER):
        if any(_imports_vllm(node) for node in ast.walk(tree)):
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            names |= set(_by_name(tree))
    return names


def names_in(file: Path) -> set[str]:
    """Return the attributes that a file names, and what it imports from vLLM."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and _is_vllm(node.module):
            names |= {alias.name for alias in node.names}
    return names


def written_past_the_class() -> set[str]:
    """Return the attributes that are written into an object's dictionary, unseen by its class."""
    return {name for file in RUST for name in _WRITTEN.findall(file.read_text())}


def own_names() -> set[str]:
    """Return what the adapter and the compiled core define themselves."""
    names = set()
    for tree in _trees([*PLUGIN.rglob("*.py"), *GEOMETRY, STATES, FIGURES, VARIABLES, STUB]):
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case (
                    ast.AnnAssign(target=ast.Name(id=name))
                    | ast.Assign(targets=[ast.Name(id=name)])
                ):
                    names.add(name)
                case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
                    names.add(name)
    return names


def _by_name(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_, ast.Constant(value=str(attribute)), *_]):
                if name in _BY_NAME:
                    yield attribute


def _imports_vllm(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=module):
            return _is_vllm(module)
        case ast.Import(names=names):
            return any(_is_vllm(alias.name) for alias in names)
    return False


def _is_vllm(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "vllm"
