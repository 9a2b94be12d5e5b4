"""One HTML file that needs neither a server nor a network, and its colors."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jinja2
from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.events import DocumentReady
from bokeh.models import CustomJS, InlineStyleSheet, LayoutDOM
from bokeh.models.widgets import Div
from bokeh.resources import Resources

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.model.layer import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    SlidingWindow,
    State,
)
from hybrid_blocks.terminal import plain
from hybrid_blocks.tools.plan.vllm.spec import RING

OWNERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attention": "#4c78a8",
        "latent attention": "#4c78a8",
        "states": "#f58518",
        "windows": "#3f9e96",
        "chunks": "#3f9e96",
        "cross attention": "#a2679f",
        "index keys": "#8c6d46",
    }
)

OWNER_OF_KIND: Final[Mapping[str, str]] = MappingProxyType(
    {
        FullAttention.kind: "attention",
        LatentAttention.kind: "latent attention",
        SlidingWindow.kind: "windows",
        ChunkedAttention.kind: "chunks",
        CrossAttention.kind: "cross attention",
        State.kind: "states",
        "mamba": "states",
        RING: "index keys",
    }
)
"""Names of owners, by the kinds of groups of both plans."""

PADDED: Final = "#fdeceb"
PADDING: Final = "#c62828"
ROUNDED: Final = "#eef0f3"
ROUNDING: Final = "#6b7280"
NULL: Final = "#3b4048"
UNUSED: Final = "#ffffff"
TAIL: Final = "#d5d9df"
FOUND: Final = "#12a150"
AGAIN: Final = "#d1242f"
INK: Final = "#1b1f24"


def swatch(color: str) -> str:
    """Return the style of a small square of a legend."""
    return f"background:{color}"


def hatched(color: str, lines: str) -> str:
    """Return the style of a square with diagonal lines."""
    return f"background:repeating-linear-gradient(135deg,{color} 0 3px,{lines} 3px 4.5px)"


def dotted(color: str, dots: str) -> str:
    """Return the style of a square with dots."""
    return f"background:radial-gradient({dots} 1px,{color} 1.5px) 0 0/5px 5px"


def pale(color: str) -> str:
    """Return a color mixed with white, for what no running request holds."""
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.4 * (255 - part)):02x}" for part in parts)


FOLDER: Final = Path(__file__).parent

POLICY: Final = (
    "default-src 'none'; script-src{0} 'unsafe-inline' 'unsafe-eval'; "
    "style-src{0} 'unsafe-inline'; img-src data: blob:; font-src data:{1}; base-uri 'none'; "
    "form-action 'none'"
)
"""With it a browser refuses all requests of a page, except those to a server that it names."""

WIDTH: Final = 1160

FLUID: Final[dict[str, Any]] = {"sizing_mode": "stretch_width", "max_width": WIDTH}
"""Sizes of a part that is as wide as its page, and narrower in a narrow window."""

STACKED: Final = (
    "@media (max-width: 800px) { :host { flex-direction: column !important; } "
    ".bk-Figure { flex: none !important; } }"
)
"""Style of a row whose parts lie one below the other in a narrow window."""


class MadeBy(NamedTuple):
    """The version and the command that made a page."""

    version: str
    command: str


def read(name: str) -> str:
    """Return a file of this package."""
    return (FOLDER / name).read_text(encoding="utf-8")


def text(content: str = "", **options: Any) -> Div:
    """Return a box of HTML in the style of the pages; `safe` makes HTML of a text of others."""
    return Div(
        text=content,
        disable_math=True,  # MathJax would make links of scripts from TeX
        stylesheets=[InlineStyleSheet(css=read("parts.css"))],
        **FLUID,
        **options,
    )


def safe(content: str) -> str:
    """Return a text of others as HTML that shows it letter by letter."""
    return "<br>".join(escape(plain(line)) for line in content.splitlines())


def legend(styles: Mapping[str, str]) -> str:
    """Return a line of swatches with their names."""
    marks = (f'<span><i style="{style}"></i>{safe(name)}</span>' for name, style in styles.items())
    return f'<div class="legend">{"".join(marks)}</div>'


def footer(made_by: MadeBy | None, meaning: str) -> Div:
    """Return the foot of a page: what made it, and what its words mean."""
    made = ""
    if made_by is not None:
        made = f"hybrid-blocks {safe(made_by.version)}: <code>{safe(made_by.command)}</code><br>"
    return text(f'<p class="foot">{made}{safe(meaning)}</p>', name="foot")


def document(root: LayoutDOM, title: str, *scripts: CustomJS) -> Document:
    """Return a document of one page; a browser runs the scripts once the page is there."""
    made = Document(title=plain(title))
    made.add_root(root)
    made.js_on_event(DocumentReady, *scripts)
    return made


def frame(page: Document, policy: str) -> None:
    """Put a page into the HTML around it, with a policy of what it may fetch."""
    page.template = jinja2.Environment(autoescape=False).from_string(read("page.html"))
    page.template_variables["policy"] = policy


def html_of(page: Document) -> str:
    """Return a page as one HTML text."""
    frame(page, POLICY.format("", ""))
    return str(
        file_html(
            page,
            resources=Resources(mode="inline"),
            title=page.title,
            template=page.template,
            template_variables=page.template_variables,
        )
    )


def write(page: Document, path: Path) -> None:
    """Write a page to a file."""
    try:
        path.write_text(html_of(page), encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"--html {path}: {error.strerror or error}") from None
