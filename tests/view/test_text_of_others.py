"""Names of others are plain text on every page, for HTML as for TeX."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from bokeh.models.widgets import AutocompleteInput, Div
from command import answer
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, model_cache
from hybrid_blocks.tools.replay.run import Variant, compare
from hybrid_blocks.tools.trace import read_trace
from hybrid_blocks.tools.view.controls import Controls, plan
from hybrid_blocks.tools.view.page import safe
from hybrid_blocks.tools.view.plan_page import PlanPage
from hybrid_blocks.tools.view.replay_page import ReplayPage
from hybrid_blocks.tools.view.replay_picture import make_replay_picture
from scripts import RUN, Elements, write_config, write_trace

PLAIN: dict[Any, set[str]] = {
    ColumnDataSource: {"data"},
    AutocompleteInput: {"value", "value_input", "completions"},
}
"""Properties that Bokeh shows as text or not at all; data is filled into escaped tooltips."""


def plan_page(folder: Path) -> Document:
    model = load_model(str(write_config(folder)))
    return PlanPage(plan(model, "64MiB", Deployment())).document()


def served_page(folder: Path) -> Document:
    document = Document()
    Controls(load_model(str(write_config(folder))), "64MiB").show(document)
    return document


def replay_page(folder: Path) -> Document:
    cache = model_cache("Granite-4.0-Micro", "1GiB", Deployment(in_flight_batches=1))
    trace = read_trace(write_trace(folder))
    runs = compare(trace, cache, [Variant()], EngineConfig(), with_film=True)
    return ReplayPage(make_replay_picture(trace, cache, runs)).document()


def strings(value: Any) -> Iterator[str]:
    """All texts within a property's value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from strings(pair)
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from strings(one)


@pytest.mark.parametrize("make", [plan_page, served_page, replay_page])
def test_no_model_renders_a_name_of_others(make: Any, tmp_path: Path) -> None:
    page, shown = make(tmp_path), 0
    for model in page.models:
        if hasattr(model, "disable_math"):
            assert model.disable_math, model
        for name, value in model.properties_with_values().items():
            for text in strings(value):
                if RUN not in text or name in PLAIN.get(type(model), set()):
                    continue
                assert (type(model), name) == (Div, "text")
                assert not {"<img", "<script", "<svg"} & set(re.findall(r"<\w+", text))
                shown += 1
    assert shown
    assert sum(isinstance(model, Div) for model in page.models) > 5


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_a_file_holds_no_element_of_a_name(command: str, tmp_path: Path) -> None:
    page, plain = tmp_path / "page.html", tmp_path / "plain.html"
    if command == "plan":
        asked, named = ("--memory", "64MiB", "--max-model-len", "512"), write_config(tmp_path)
        other: tuple[str, ...] = ("Granite-4.0-Micro",)
    else:
        asked, named = ("--model", "Granite-4.0-Micro", "--memory", "8GiB"), write_trace(tmp_path)
        other = ("--workload", "conversations", "--limit", "20")
    found = []
    for what, path in (((str(named),), page), (other, plain)):
        answer(command, *what, *asked, "--html", path)
        found.append(Elements(path.read_text()))
    assert found[0].found == found[1].found
    assert RUN in found[0].title
    assert "FindTeX" not in page.read_text()  # part of MathJax


def test_html_of_a_name_is_its_letters() -> None:
    assert safe("<b>&\"'\x1b\u202e\nc") == "&lt;b&gt;&amp;&quot;&#x27;\\x1b\\u202e<br>c"
