"""The layers drawn in `docs/design.md` against the imports of the code, in both directions."""

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "rust/core/src"
PACKAGE = ROOT / "python/hybrid_blocks"
Arrows = set[tuple[str, str]]

MOST_ROOMS = 20
MOST_ARROWS = 40


def drawn(heading: str) -> dict[str, tuple[int, set[str]]]:
    """Each room of a drawing with its line's number and the rooms that it may use.

    A line is `room, room -> room, room   words`: rooms of one line may use each other.
    """
    text = (ROOT / "docs/design.md").read_text()
    block = re.search(rf"^### {heading}$.*?^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert block, f"docs/design.md has no drawing under '### {heading}'"
    rooms = {}
    for number, line in enumerate(block[1].splitlines()):
        names, arrow, rest = line.partition(" -> ")
        users = [name.strip() for name in names.split("  ")[0].split(",")]
        used = re.split(r"\s{2,}", rest.strip())[0].split(", ") if arrow else []
        for user in users:
            rooms[user] = number, {*used, *users} - {user}
    return rooms


def room_of(path: list[str], rooms: dict[str, tuple[int, set[str]]]) -> str:
    """The longest drawn room that holds a module, or its top folder or file."""
    for length in range(len(path), 0, -1):
        if "/".join(path[:length]) in rooms:
            return "/".join(path[:length])
    return path[0]


def rust_arrows(rooms: dict[str, tuple[int, set[str]]]) -> Iterator[tuple[str, str, Path]]:
    for source in CORE.rglob("*.rs"):
        if source.name in {"lib.rs", "tests.rs"}:
            continue
        here = list(source.relative_to(CORE).with_suffix("").parts)
        for path in re.findall(r"\bcrate::([a-z_:]+)", source.read_text()):
            there = [part for part in path.split("::") if part]
            yield room_of(here, rooms), room_of(there, rooms), source


def python_arrows(rooms: dict[str, tuple[int, set[str]]]) -> Iterator[tuple[str, str, Path]]:
    for source in [*PACKAGE.rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]:
        folder = PACKAGE if source.is_relative_to(PACKAGE) else ROOT
        here = list(source.relative_to(folder).with_suffix("").parts)
        if here == ["__init__"]:
            continue
        for module in imported(source, here):
            yield room_of(here, rooms), room_of(module, rooms), source


def imported(source: Path, here: list[str], *, with_types: bool = True) -> Iterator[list[str]]:
    """The modules of this package that a file imports, as paths below the package."""
    tree = ast.parse(source.read_text())
    if not with_types:
        tree.body = [it for it in tree.body if "TYPE_CHECKING" not in ast.unparse(it)[:20]]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            if node.level:
                module = here[: len(here) - node.level] + module
            elif module[:1] == ["hybrid_blocks"]:
                module = module[1:]
            else:
                continue
            for alias in node.names:
                below = [*module, alias.name]
                path = PACKAGE.joinpath(*below)
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                if is_module or module:
                    yield below if is_module else module
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("hybrid_blocks."):
                    yield alias.name.split(".")[1:]


def crate_arrows(_rooms: dict[str, tuple[int, set[str]]]) -> Iterator[tuple[str, str, Path]]:
    for source in [*(ROOT / "rust").glob("*/Cargo.toml"), ROOT / "fuzz/Cargo.toml"]:
        crate = source.parent.name
        for name in tomllib.loads(source.read_text()).get("dependencies", {}):
            if name.startswith("hybrid-blocks"):
                yield (
                    crate,
                    name.removeprefix("hybrid-blocks-").replace("hybrid-blocks", "core"),
                    source,
                )


DRAWINGS = {
    "Modules of the core": rust_arrows,
    "Crates": crate_arrows,
    "The Python package": python_arrows,
}


@pytest.mark.parametrize("heading", DRAWINGS)
def test_imports_follow_the_drawing(heading: str) -> None:
    rooms = drawn(heading)
    found = [arrow for arrow in DRAWINGS[heading](rooms) if arrow[0] != arrow[1]]
    may_use = {user: rooms.get(user, (0, set[str]()))[1] for user, _, _ in found}
    extra = [(user, used, source) for user, used, source in found if used not in may_use[user]]
    not_drawn = {f"{source.relative_to(ROOT)}: {user} -> {used}" for user, used, source in extra}
    assert not not_drawn, f"not drawn in docs/design.md under '{heading}'"
    arrows: Arrows = {(user, used) for user, used, _ in found}
    for user, (line, uses) in rooms.items():
        for used in uses:
            assert rooms[used][0] <= line, f"{user} -> {used}: {used} is drawn below {user}"
            same_line = rooms[used][0] == line
            assert same_line or any(
                (other, used) in arrows for other, (at, _) in rooms.items() if at == line
            ), f"no file of {user} uses {used}: take the arrow out of docs/design.md"


def test_the_plugin_keeps_few_rooms_and_arrows_and_no_circle() -> None:
    """A room is a file or folder directly below ``vllm``, an arrow an import between two."""
    plugin = PACKAGE / "vllm"
    rooms = {path.stem for path in plugin.iterdir() if path.suffix == ".py" or path.is_dir()}
    rooms -= {"__init__", "__pycache__", "log"}  # every room logs
    uses: dict[str, set[str]] = {room: set() for room in rooms}
    for source in plugin.rglob("*.py"):
        here = list(source.relative_to(PACKAGE).with_suffix("").parts)
        for there in imported(source, here):
            if here[1] in rooms and there[:1] == ["vllm"] and there[1:2] != [here[1]]:
                uses[here[1]].update(rooms & set(there[1:2]))
    assert {"manager", "releases"} <= uses["scheduler"]
    assert len(rooms) <= MOST_ROOMS
    assert sum(map(len, uses.values())) <= MOST_ARROWS
    TopologicalSorter(uses).prepare()  # a cycle raises CycleError


def test_no_modules_of_the_package_import_each_other() -> None:
    """Imports for types alone may."""
    uses: dict[str, set[str]] = {}
    for source in PACKAGE.rglob("*.py"):
        here = list(source.relative_to(PACKAGE).with_suffix("").parts)
        if here[-1] != "__init__":
            uses["/".join(here)] = set(map("/".join, imported(source, here, with_types=False)))
    assert "geometry/arena" in uses["geometry/capacity"]
    TopologicalSorter(uses).prepare()  # a cycle raises CycleError


def test_a_drawing_is_read_as_it_says() -> None:
    rooms = drawn("Modules of the core")
    assert "ids" in rooms["pool"][1]
    assert "group" in rooms["engine"][1]
    assert "engine" not in rooms["group"][1]
    assert "pool" not in rooms["ids"][1]
