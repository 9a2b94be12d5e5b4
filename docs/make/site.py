"""Let mkdocs build a site of pages that are written for a reader of the repository.

Links between pages of the repository lead to their pages in the site, also where they lie outside
``docs``. Links to other files lead to a copy. Lists and tables may follow a line directly.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""Pages outside ``docs``, by their place in the site."""
COPIES: Final = "files"
"""The site's folder of files that are no pages."""

_TARGET: Final = re.compile(r"(\]\(|\bsrc=\")([^)\s\"#:]+)((?:#[^)\s\"]*)?[)\"])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside ``docs``, and each file that a page names."""
    for path, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    named = {
        path
        for page in files.documentation_pages()
        for path in _named(_path(page.src_uri), page.content_string)
        if _place(path).startswith(f"{COPIES}/") and (ROOT / path).is_file()
    }
    for path in sorted(named):
        files.append(File.generated(config, _place(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where their files lie in the site, and set lists and tables apart."""
    here = page.file.src_uri

    def led(match: re.Match[str]) -> str:
        place = _place(_joined(_path(here), match[2]))
        return match[1] + posixpath.relpath(place, posixpath.dirname(here) or ".") + match[3]

    pieces = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    pieces[::2] = [_set_apart(_TARGET.sub(led, piece)) for piece in pieces[::2]]
    return "".join(pieces)


def _named(path: str, markdown: str) -> Iterator[str]:
    for match in _TARGET.finditer(markdown):
        yield _joined(path, match[2])


def _joined(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _place(path: str) -> str:
    """Return where a file of the repository lies in the site."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{COPIES}/{path}"


def _path(place: str) -> str:
    """Return the file of the repository that lies at a place of the site."""
    for path, at in PAGES.items():
        if at == place:
            return path
    return f"docs/{place}"


def _set_apart(markdown: str) -> str:
    """Put an empty line before each list and table, as Markdown of old demands."""
    lines: list[str] = []
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        begins = re.match(r"- |\d+\. |\|", line) and not re.match(r"\d+\. ", before)
        if begins and re.match(r"[^\s|#-]", before):
            lines.append("")
        # Two spaces set a list in, where Markdown of old wants four.
        lines.append(re.sub(r"^  (?=\S)", "    ", line))
    return "\n".join(lines)
