"""Files that docs/design.md names for a fault or a change are in the tree."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("", "rust/core/src", "rust/core/src/group", "python/hybrid_blocks"),
    *("tests", "tests/kernels", "tests/trace"),
)
TEMPLATE = re.compile(r"[A-Z]{4,}")
"""A name that stands for many: ``kernels/NAME/``."""


def expanded(path: str) -> Iterator[str]:
    """The paths that braces stand for."""
    parts = [part.split(",") for part in re.split(r"[{}]", path)]
    yield from map("".join, product(*parts))


def named() -> set[str]:
    """The paths in the tables of the section."""
    _, _, section = (ROOT / "docs/design.md").read_text().partition("\n## Where a change goes\n")
    rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    words = {
        it
        for it in re.findall(r"`([\w/{},.-]+)`", rows)
        if ("/" in it or re.search(r"\.(rs|py|pyi|toml|json|md)$", it)) and not TEMPLATE.search(it)
    }
    return {path for word in words for path in expanded(word)}


def test_each_named_file_or_folder_exists() -> None:
    paths = named()
    assert len(paths) > 50
    missing = {path for path in paths if not any((ROOT / it / path).exists() for it in FOLDERS)}
    assert not missing
