"""``python tests/tested_releases.py add 0.34.0``, or ``drop``: the tested releases of vLLM.

Python, the Makefile and the tests read the one list. The files here cannot and follow it.
"""

import sys
from pathlib import Path
from typing import Final

LIST: Final = "python/hybrid_blocks/vllm/surface/tested.txt"
LIVES: Final = "rust/core/tests/fixtures"
TABLE: Final = "README.md"
IMAGES: Final = ("examples/compose/compose.yaml", "examples/image/Dockerfile")


def listed(root: Path) -> list[str]:
    """Return the versions, oldest first."""
    lines = (root / LIST).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def in_words(versions: list[str]) -> str:
    """Return the versions' releases as the table names them: ``vLLM 0.31, 0.32 and 0.33``."""
    *before, last = (version.rpartition(".")[0] for version in versions)
    return "vLLM " + " and ".join(filter(None, (", ".join(before), last)))


def base(versions: list[str]) -> str:
    """Return the image of vLLM's newest release, which the examples start from."""
    return f"vllm/vllm-openai:v{versions[-1]}"


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def change(root: Path, versions: set[str]) -> None:
    """Write another list, and all that names its releases; delete the lives of dropped releases."""
    before, after = listed(root), sorted(versions, key=_ordered)
    for dropped in {*before} - {*after}:
        for lives in (root / LIVES).glob(f"vllm-{dropped.rpartition('.')[0]}[-.]*"):
            lives.unlink()
    _replace(root / LIST, "\n".join(before), "\n".join(after))
    _replace(root / TABLE, in_words(before), in_words(after))
    for image in IMAGES:
        _replace(root / image, base(before), base(after))


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    if old not in text:
        sys.exit(f"{file} should name {old!r}")
    if old != new:
        file.write_text(text.replace(old, new))


def main(order: str, version: str) -> None:
    """Add or drop a version."""
    root = Path()
    before = set(listed(root))
    match order, version in before:
        case "add", _:
            after = before | {version}
        case "drop", True if len(before) > 1:
            after = before - {version}
        case _:
            sys.exit(f"{version} cannot be dropped: the list has {', '.join(sorted(before))}")
    change(root, after)
    print(f"{LIST}: {', '.join(listed(root))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
