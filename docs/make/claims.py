"""Print which test holds which claim, by the first sentence of each test file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def claims() -> Iterator[tuple[Path, str]]:
    """Yield each file of tests with what it holds, Rust after Python."""
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        yield (
            path.relative_to(ROOT),
            _sentence(ast.get_docstring(ast.parse(path.read_text())) or ""),
        )
    for path in sorted(ROOT.glob("rust/*/tests/*.rs")):
        doc = re.findall(r"^//! ?(.*)$", path.read_text(), re.MULTILINE)
        yield path.relative_to(ROOT), _sentence("\n".join(doc))


def _sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s", " ".join(text.split("\n\n", maxsplit=1)[0].split()))[0]


if __name__ == "__main__":
    print("| test | what it holds |\n|---|---|")
    for path, sentence in claims():
        print(f"| `{path}` | {sentence} |")
