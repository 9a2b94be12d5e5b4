"""The pages of the reference say what the code says, and each page has its place in the site."""

import ast
import re
from pathlib import Path

import pytest
import reference
import yaml
from hybrid_blocks.tools.replay import Result
from hybrid_blocks.tools.replay.times import Times
from hybrid_blocks.variables import VARIABLES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "python/hybrid_blocks"


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_page_made_from_the_code_is_current(page: str) -> None:
    written = (DOCS / "reference" / page).read_text()
    assert written == reference.PAGES[page](), "make reference"


def test_every_option_says_what_it_does() -> None:
    rows = re.findall(r"^\| `.*\|$", reference.command_line(), re.M)
    assert len(rows) > 70
    assert not [row for row in rows if row.endswith("|  |")]


def test_every_variable_that_the_code_reads_is_listed_and_named_once() -> None:
    """In the one file of all variables: others take the names from there."""
    names = {it.name for it in VARIABLES}
    for path in PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        values = [node.value for node in nodes if isinstance(node, ast.Constant)]
        texts = [value for value in values if isinstance(value, str)]
        found = {text for text in texts if re.fullmatch(r"HYBRID_BLOCKS(_[A-Z]+)*", text)}
        assert found == (names if path.name == "variables.py" else set()), path


def test_every_figure_of_a_replay_has_its_meaning() -> None:
    page = (DOCS / "reference/replay-figures.md").read_text()
    fields = (*Result.__struct_fields__, *Times.__struct_fields__)
    assert not [name for name in fields if f"`{name}`" not in page]


def test_the_menu_of_the_site_holds_every_page_once() -> None:
    _, _, menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    sections = yaml.safe_load(menu)
    entries = [entry for section in sections for page in section.values() for entry in page]
    named = [path for it in entries for path in (it.values() if isinstance(it, dict) else [it])]
    assert len(named) == len(set(named))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    outside = {"index.md", "changelog.md", "contributing.md", "examples.md", "security.md"}
    assert set(named) == pages | outside
