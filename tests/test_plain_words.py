"""Prose in plain words: no file gets more long sentences or avoided words than it had.

``python tests/test_plain_words.py`` counts again, after sentences were rewritten. A new file may
have none. The rule stands in CONTRIBUTING.md.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).with_suffix(".json")
MOST_WORDS = 25
AVOIDED = re.compile(
    r"\b(anew|nobody|goe?s? on from|so many|of which|in the place of|looked for|is told|are told|"
    r"is said|are said|was asked|is asked|whoever)\b",
    re.IGNORECASE,
)
SUFFIXES = {".md", ".py", ".rs", ".pyi"}


def prose(path: Path) -> Iterator[str]:
    """The paragraphs of a page, docstrings of Python, doc comments of Rust."""
    text = path.read_text()
    if path.suffix == ".md":
        text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        yield from re.split(r"\n\s*\n|\n(?=\s*[-*|#] ?)|\n(?=\d+\. )|\|", text)
    elif path.suffix == ".rs":
        lines = re.sub(r"^\s*//[/!] ?", "\x00", text, flags=re.MULTILINE).splitlines()
        comments = (line[1:] if line.startswith("\x00") else "" for line in lines)
        yield from re.split(r"\n\s*\n|\n(?=\s*[-*|#] ?)", "\n".join(comments))
    else:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from re.split(r"\n\s*\n|\n(?=\s*[-*] )", ast.get_docstring(node) or "")


def faults(path: Path) -> Iterator[str]:
    """Sentences that are too long or hold an avoided word."""
    for paragraph in prose(path):
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "code", " ".join(paragraph.split()))
        for sentence in re.split(r"(?<=[.!?:;])\s+", plain):
            if len(re.findall(r"[A-Za-z]\S*", sentence)) > MOST_WORDS or AVOIDED.search(sentence):
                yield sentence


def counted() -> dict[str, int]:
    """How many faults each tracked file has, where it has any."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    paths = [ROOT / name for name in listed if Path(name).suffix in SUFFIXES]
    counts = {str(it.relative_to(ROOT)): len(list(faults(it))) for it in paths if it.is_file()}
    return {name: count for name, count in sorted(counts.items()) if count}


def test_no_file_gets_harder_to_read() -> None:
    recorded = json.loads(RECORD.read_text())
    worse = {
        name: [f"{count} sentences, {recorded.get(name, 0)} were there", *faults(ROOT / name)]
        for name, count in counted().items()
        if count > recorded.get(name, 0)
    }
    assert not worse, json.dumps(worse, indent=1)


def test_a_long_sentence_and_an_avoided_word_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    long = "word " * 26
    page.write_text(f"A short one. {long}end.\n\n| nobody | is here |\n\n```\nnobody\n```\n")
    assert len(list(faults(page))) == 2


if __name__ == "__main__":
    RECORD.write_text(json.dumps(counted(), indent=1) + "\n")
    print(f"{sum(counted().values())} sentences", file=sys.stderr)
