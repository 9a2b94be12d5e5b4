"""Pages in a real browser; run by ``make test-pages``, which leaves pictures in ``build/pages``."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser, browser
from hybrid_blocks.cli import app
from typer.testing import CliRunner

PICTURES = Path("build/pages")
TOOLS = (
    *("replay", "--workload", "tools", "--limit", "200", "--max-num-seqs", "16"),
    *("--model", "Qwen3.5-27B", "--memory", "12GiB", "--placement", "learned,every:2048"),
)
QWEN = ("plan", "Qwen3.5-27B", "--memory", "24GiB", "--lengths", "8k")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with browser() as opened:
        yield opened


@pytest.fixture
def page(window: Browser) -> Iterator[Browser]:
    window.errors()
    yield window
    assert not window.errors()
    assert not window.fetched()


def test_a_plan_shows_the_figures_of_its_table_at_each_length(
    page: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "plan.html"
    run(*QWEN, "--html", path)
    report: dict[str, Any] = json.loads(run(*QWEN, "--json", "-"))
    page.open(path.as_uri())
    page.picture(PICTURES / "plan.png", 1570)
    lengths = page.run(
        "return JSON.parse(Bokeh.documents[0].get_model_by_name('state').data.json[0]).lengths"
    )
    for at, full in enumerate(report["natural"]["lengths"]):
        theirs = report["vllm"]["lengths"][at]
        page.set("length", lengths.index(full["length"]))
        words = page.text("head")
        assert f"<b>{int(theirs['running']):,}</b> requests of {full['length']:,} tokens" in words
        assert f"<b>{int(full['running']):,}</b>" in words
        for name, one in (("vllm", theirs), ("natural", full)):
            tiles = page.data(f"{name} map")
            assert drawn(tiles, "read") == pytest.approx(one["budget"]["live"] / 2**20, rel=0.1)


POINT = """
const plot = Bokeh.documents[0].get_model_by_name(arguments[0])
const view = Bokeh.index.find_one(plot)
view.el.scrollIntoView({block: 'center'})
const box = view.canvas_view.el.getBoundingClientRect(), frame = view.frame
const x = frame.x_scale.compute(arguments[1]), y = frame.y_scale.compute(arguments[2])
return [box.left + x, box.top + y]
"""

SHOWN = """
const found = []
const walk = node => {
  for (const child of node.querySelectorAll('*')) {
    if (child.classList.contains('bk-tooltip-content')) found.push(child.textContent)
    if (child.shadowRoot) walk(child.shadowRoot)
  }
}
walk(document)
return found.join(' ')
"""


def test_a_replay_plays_and_tells_of_a_miss(page: Browser, tmp_path: Path) -> None:
    path, figures = tmp_path / "replay.html", tmp_path / "figures.json"
    run(*TOOLS, "--html", path, "--json", figures)
    results: list[dict[str, Any]] = json.loads(figures.read_text())
    page.open(path.as_uri())
    page.picture(PICTURES / "replay.png", 2050)

    page.set("time", 399)
    words = page.text("now")
    for result in results:
        assert f"<b>{result['variant']}</b>" in words
        assert f"{100 * result['hit_rate']:.1f} % of prompt tokens found so far" in words
    before = page.data("tiles 0")["color"]
    page.set("time", 0)
    assert page.data("tiles 0")["color"] != before

    page.run("Bokeh.documents[0].get_model_by_name('play').active = true")
    page.wait(lambda: page.run("return Bokeh.documents[0].get_model_by_name('time').value > 5"))
    page.run("Bokeh.documents[0].get_model_by_name('play').active = false")
    stopped = page.run("return Bokeh.documents[0].get_model_by_name('time').value")
    time.sleep(0.3)
    assert page.run("return Bokeh.documents[0].get_model_by_name('time').value") == stopped

    requests = page.data("requests 0")
    misses = [at for at, text in enumerate(requests["story"]) if "attention was there" in text]
    missed = max(misses, key=lambda at: requests["again"][at] - requests["hit"][at])
    middle = (requests["again"][missed] + requests["hit"][missed]) / 2
    plot = f"prompts of {results[0]['variant']}"
    left, top = page.run(POINT, plot, requests["seconds"][missed], middle)
    page.point(left, top)
    page.wait(lambda: requests["story"][missed] in page.run(SHOWN))


def test_a_served_page_plans_what_its_controls_say(window: Browser) -> None:
    code = "from hybrid_blocks.cli import app; app()"
    serve = [sys.executable, "-u", "-c", code, "view", "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[0]
            window.errors()
            window.open(address)
            window.picture(PICTURES / "view.png", 1420)
            window.set("memory", "30GiB")
            asked = ("Qwen3.5-27B", "--memory", "30GiB", "--lengths", "8k", "--json", "-")
            report: dict[str, Any] = json.loads(run("plan", *asked))
            wanted = f"<b>{int(report['natural']['lengths'][1]['running']):,}</b>"
            window.wait(lambda: wanted in window.text("head"))
            assert all(name.startswith(address) for name in window.fetched())
            assert not window.errors()
        finally:
            server.terminate()


def drawn(tiles: dict[str, list[Any]], what: str) -> float:
    """MiB of the tiles that show something; a tenth of each is a gap."""
    edges = zip(*(tiles[name] for name in ("left", "right", "bottom", "top", "what")), strict=True)
    area: float = sum(
        (right - left) / 0.92 * (top - bottom) / 0.9
        for left, right, bottom, top, words in edges
        if words.startswith(what)
    )
    return area
