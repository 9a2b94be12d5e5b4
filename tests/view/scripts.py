"""Names that would run a script where a page took them for HTML or TeX, and what a page holds."""

import json
from html.parser import HTMLParser
from pathlib import Path

RUN = "window.ran=1"
TEX = rf"$$\href{{javascript:{RUN}}}{{a}}$$ \(\href{{javascript:{RUN}}}{{b}}\)"
IN_FILES = f"{TEX} <img src=x onerror={RUN}>"
"""A name that a file can have."""

SCRIPTS = f"{IN_FILES}</script><script>{RUN}</script></title><svg onload={RUN}>"


def write_config(folder: Path) -> Path:
    """Write a model that has such names in all its texts; return its folder."""
    made = folder / IN_FILES
    made.mkdir(parents=True)
    fields: dict[str, object] = {"architectures": [SCRIPTS], "_name_or_path": SCRIPTS}
    fields |= {"model_type": "llama"}
    fields |= {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    (made / "config.json").write_text(json.dumps({**fields, "max_position_embeddings": 512}))
    return made


def write_trace(folder: Path) -> Path:
    """Write a trace in a file of such a name."""
    path = folder / f"{IN_FILES}.csv"
    rows = [f"2024-05-01 10:00:{second:02}.0,1000,24\n" for second in range(20)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return path


class Elements(HTMLParser):
    """Collects the elements of a page, what they would fetch, and the text of its title."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.fetched: list[str] = []
        self.policies: list[str] = []
        self.title = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found.append(tag)
        self.fetched += [str(given[name]) for name in ("src", "href", "data") if name in given]
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(str(given["content"]))

    def handle_data(self, data: str) -> None:
        if self.found[-1:] == ["title"]:
            self.title += data
