"""Prose in plain words: no long sentence, no avoided word, and no order in docs of Rust.

The rule stands in CONTRIBUTING.md.
"""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_WORDS = 25
AVOIDED = re.compile(
    r"\b(anew|nobody|goe?s? on from|so many|of which|in the place of|looked for|is told|are told|"
    r"is said|are said|was asked|is asked|whoever)\b",
    re.IGNORECASE,
)
IMPERATIVE = re.compile(
    r"^(Add|Adopt|Append|Check|Compute|Copy|Create|Do|Drop|Empty|Enter|Forget|Get|Give|Have|Keep|Let|"
    r"Make|Move|Note|Prepare|Put|Read|Register|Remove|Replace|Return|Run|Say|Set|Take|Tell|Undo|Walk)"
    r" (?!\d)"
)
"""How a doc comment of Rust does not begin: it says what a function does, in the third person."""
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
    """Sentences that are too long or hold an avoided word, and orders in doc comments of Rust."""
    for paragraph in prose(path):
        if path.suffix == ".rs" and IMPERATIVE.match(paragraph.lstrip()):
            yield paragraph
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "code", " ".join(paragraph.split()))
        for sentence in re.split(r"(?<=[.!?:;])\s+", plain):
            if len(re.findall(r"[A-Za-z]\S*", sentence)) > MOST_WORDS or AVOIDED.search(sentence):
                yield sentence


def test_every_sentence_is_plain() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    paths = [ROOT / name for name in listed if Path(name).suffix in SUFFIXES]
    assert {path.suffix for path in paths} == SUFFIXES
    found = {str(path): list(faults(path)) for path in paths if path.is_file()}
    wrong = {name: sentences for name, sentences in found.items() if sentences}
    assert not wrong, json.dumps(wrong, indent=1)


def test_a_long_sentence_and_an_avoided_word_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    long = "word " * 26
    page.write_text(f"A short one. {long}end.\n\n| nobody | is here |\n\n```\nnobody\n```\n")
    assert len(list(faults(page))) == 2


def test_a_doc_comment_of_rust_that_gives_an_order_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file.rs"
    file.write_text("/// Take a block.\nfn take() {}\n\n/// Takes a block.\nfn takes() {}\n")
    assert list(faults(file)) == ["Take a block."]
