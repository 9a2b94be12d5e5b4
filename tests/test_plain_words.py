"""Prose in plain words: short sentences, no avoided word, docs of Rust in the third person.

Comments name their subject in the folders of `PLAIN`. The rule stands in CONTRIBUTING.md.
"""

import ast
import io
import json
import re
import subprocess
import tokenize
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
VAGUE = re.compile(r"(It|Its|That of|Those|They|Of|What)\b")
"""How a comment, or a doc comment of Rust, does not begin: its subject has no name."""
LEAST_WORDS = 3
MARKS = re.compile(r"noqa|type:|fmt:|pragma|mypy:|ruff:|!|-{2,}|SAFETY")
"""How comments for tools begin, and lines between sections."""
PLAIN = (
    *("benches", "docs", "examples/convert", "fuzz", "kernels/gather_scatter", "tests"),
    *(f"python/hybrid_blocks/{it}" for it in ("_core", "geometry", "metrics.py", "model")),
    *(f"python/hybrid_blocks/{it}" for it in ("offload", "tools", "vllm")),
    *(f"rust/core/{it}" for it in ("src", "tests/common", "tests/recorded", "tests/steps")),
    *(f"rust/{it}" for it in ("hash", "interop", "offload", "ops", "py", "vllm")),
)
"""Folders and files whose comments are plain; the list grows until it is the whole project."""


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
    """Sentences that are too long or hold an avoided word; orders and vague docs of Rust."""
    for paragraph in prose(path):
        begin = paragraph.lstrip()
        if path.suffix == ".rs" and (IMPERATIVE.match(begin) or VAGUE.match(begin)):
            yield begin.rstrip()
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "code", " ".join(paragraph.split()))
        for sentence in re.split(r"(?<=[.!?:;])\s+", plain):
            if len(re.findall(r"[A-Za-z]\S*", sentence)) > MOST_WORDS or AVOIDED.search(sentence):
                yield sentence


def comments(path: Path) -> Iterator[str]:
    """Comments that are no documentation, docstrings, and strings behind an attribute."""
    text = path.read_text()
    lines = _rust_lines(text) if path.suffix == ".rs" else _python_lines(text)
    found: list[tuple[int, str]] = []
    for number, line in lines:
        if found and found[-1][0] == number - 1:
            found[-1] = number, f"{found[-1][1]} {line}"
        else:
            found.append((number, line))
    yield from (comment for _, comment in found if not MARKS.match(comment))
    if path.suffix != ".rs":
        yield from _strings(ast.parse(text))


def _rust_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*//(?![/!])\s*(\S.*)", line):
            yield number, found[1]


def _python_lines(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment = re.split(r"\s*#\s*(?:noqa|type:)", token.string)[0].lstrip("# ")
            if comment and not MARKS.match(comment):
                yield token.start[0], comment


def _strings(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or "No docstring here."
            for before, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                    text = after.value
                    yield str(text.value if isinstance(text, ast.Constant) else "No string here.")


def vague(path: Path) -> Iterator[str]:
    """Comments that begin with no named subject, are too short, or hold an avoided word."""
    for comment in comments(path):
        words = re.findall(r"[A-Za-z`]\S*", comment)
        if VAGUE.match(comment) or len(words) < LEAST_WORDS or AVOIDED.search(comment):
            yield comment


def listed_paths() -> list[Path]:
    """Files of the project whose prose is read."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).split()
    return [ROOT / name for name in listed if Path(name).suffix in SUFFIXES]


def test_every_sentence_is_plain() -> None:
    paths = listed_paths()
    assert {path.suffix for path in paths} == SUFFIXES
    found = {str(path): list(faults(path)) for path in paths if path.is_file()}
    wrong = {name: sentences for name, sentences in found.items() if sentences}
    assert not wrong, json.dumps(wrong, indent=1)


def test_a_long_sentence_and_an_avoided_word_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    long = "word " * 26
    page.write_text(f"A short one. {long}end.\n\n| nobody | is here |\n\n```\nnobody\n```\n")
    assert len(list(faults(page))) == 2


def test_a_doc_comment_of_rust_that_orders_or_names_no_subject_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file.rs"
    file.write_text(
        "/// Take a block.\nfn take() {}\n\n/// Takes a block.\nfn takes() {}\n"
        "\n/// Its end.\nfn end() {}\n"
    )
    assert list(faults(file)) == ["Take a block.", "Its end."]


def test_comments_of_clean_folders_name_their_subject() -> None:
    paths = [path for path in listed_paths() if path.suffix != ".md" and path.is_file()]
    for plain in PLAIN:
        below = [path for path in paths if path.is_relative_to(ROOT / plain)]
        assert below, f"{plain} holds no code"
        wrong = {str(path): found for path in below if (found := list(vague(path)))}
        assert not wrong, json.dumps(wrong, indent=1)


def test_a_vague_comment_is_found_and_a_mark_is_none(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        '"""Take blocks."""\n'
        "# Its end.\n"
        "x = 1  # noqa: E501 - a reason\n"
        "# A block that nobody\n# owns any more.\n"
        '"""What a block is."""\n'
        "def f():\n    x = 1\n    yield\n"
    )
    assert list(vague(file)) == [
        *("Its end.", "A block that nobody owns any more."),
        *("Take blocks.", "What a block is."),
    ]
    rust = tmp_path / "file.rs"
    rust.write_text("/// Its docs.\n// Of one block.\nfn take() {}\n// The block stays live.\n")
    assert list(vague(rust)) == ["Of one block."]
