"""Pages in a real browser; run by ``make test-pages``, which leaves pictures in ``build/pages``."""

import json
import math
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chromium import IDLE, MODEL, Browser, browser
from command import answer, as_json
from hybrid_blocks.tools.view import page as colors
from scripts import TEX, write_config, write_trace
from urllib3.exceptions import ReadTimeoutError

PICTURES = Path("build/pages")
TOOLS = (
    *("replay", "--workload", "tools", "--limit", "200", "--max-num-seqs", "16"),
    *("--model", "Qwen3.5-27B", "--memory", "12GiB", "--placement", "learned,every:2048"),
)
QWEN = ("plan", "Qwen3.5-27B", "--memory", "24GiB", "--lengths", "8k")


@pytest.fixture
def window() -> Iterator[Browser]:
    """A browser of the test's own: one that hangs takes no other test with it."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with browser() as opened:
        yield opened


@pytest.fixture
def page(window: Browser) -> Iterator[Browser]:
    window.errors()
    yield window
    assert not window.errors()
    assert not window.fetched()


def test_a_page_that_hangs_ends_its_browser(window: Browser) -> None:
    window.driver.command_executor.client_config.timeout = 5
    with pytest.raises(ReadTimeoutError):
        window.run("while (true) {}")
    assert window.driver.service.process.wait(timeout=60) == -signal.SIGKILL


def test_a_plan_shows_the_figures_of_its_table_at_any_length(page: Browser, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    answer(*QWEN, "--html", path)
    report: dict[str, Any] = as_json(*QWEN)
    page.open(path.as_uri())
    page.picture(PICTURES / "plan.png", 1570)
    state = "Bokeh.documents[0].get_model_by_name('state').data.json[0]"
    lengths = page.run(f"return JSON.parse({state}).lengths")
    for at, full in enumerate(report["natural"]["lengths"]):
        theirs = report["vllm"]["lengths"][at]
        page.set("length", lengths.index(full["length"]))
        words = page.text("head")
        assert f"<b>{int(theirs['running']):,}</b> requests of {full['length']:,} tokens" in words
        assert f"<b>{int(full['running']):,}</b>" in words
        for name, one in (("vllm", theirs), ("natural", full)):
            tiles = page.data(f"{name} map")
            assert drawn(tiles, "read") == pytest.approx(one["budget"]["live"] / 2**20, rel=0.1)


def test_a_replay_plays_and_tells_of_a_miss(page: Browser, tmp_path: Path) -> None:
    path, figures = tmp_path / "replay.html", tmp_path / "figures.json"
    answer(*TOOLS, "--html", path, "--json", figures)
    results: list[dict[str, Any]] = json.loads(figures.read_text())
    page.open(path.as_uri())
    page.picture(PICTURES / "replay.png", 2050)

    page.set("time", 399)
    words = page.text("now")
    for result in results:
        assert f"<b>{result['variant']}</b>" in words
        assert f"{100 * result['hit_rate']:.1f} % of prompt tokens found so far" in words
    assert_slabs_show_their_blocks(page)
    assert_hits_are_lit(page, results[0])
    page.point(*page.place("map tiles 0", 0.5, 0.5))
    page.wait(lambda: any(owner in page.tooltips() for owner in OWNERS))
    plots = [f"prompts of {result['variant']}" for result in results]
    assert_a_line_shows_the_time(page, plots)

    page.set("time", 0)
    page.run(NOTED)
    page.run("Bokeh.documents[0].get_model_by_name('play').active = true")
    page.wait(lambda: any(map(FINDS.search, page.run("return window.told"))))
    page.run("Bokeh.documents[0].get_model_by_name('play').active = false")
    assert page.run("return Bokeh.documents[0].get_model_by_name('time').value") > 5
    assert lit(page)[0] * BLOCK_TOKENS == found_in_words(page)
    stopped = page.run("return Bokeh.documents[0].get_model_by_name('time').value")
    time.sleep(0.3)
    assert page.run("return Bokeh.documents[0].get_model_by_name('time').value") == stopped

    requests = page.data("requests 0")
    misses = [at for at, text in enumerate(requests["story"]) if "attention was there" in text]
    missed = max(misses, key=lambda at: requests["again"][at] - requests["hit"][at])
    middle = (requests["again"][missed] + requests["hit"][missed]) / 2
    page.point(*page.place(plots[0], requests["seconds"][missed], middle))
    page.wait(lambda: requests["story"][missed] in page.tooltips())


OWNERS = {
    "not used yet": (colors.UNUSED, colors.UNUSED),
    "attention": (colors.OWNERS["attention"], colors.pale(colors.OWNERS["attention"])),
    "states": (colors.OWNERS["states"], colors.pale(colors.OWNERS["states"])),
}
"""Colors of blocks that running requests hold, and of others; the first word of an owner."""

BLOCK_TOKENS = 16
SLAB_BLOCKS = 37
"""Blocks of attention in a slab: 7 small squares in a row, and 6 rows."""
STATE_GROUPS = 4
"""Groups of states that this model has."""

NOTED = """
window.told = []
const slider = Bokeh.documents[0].get_model_by_name('time')
const box = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name('hit tiles 0')).markup_el
slider.connect(slider.properties.value.change, () => window.told.push(box.innerHTML))
"""
"""Notes what the page says of the newest request while it plays."""

FINDS = re.compile(r"finds ([1-9][\d,]*) of")


def duration(page: Browser) -> float:
    """Virtual seconds of the replay."""
    axis = "get_model_by_name('prompts of rust learned').x_range"
    seconds: float = page.run(f"return Bokeh.documents[0].{axis}.end")
    return seconds


def found_in_words(page: Browser) -> int:
    """Tokens that the newest request found, as the page says."""
    told = FINDS.search(page.text("hit tiles 0"))
    return int(told[1].replace(",", "")) if told else 0


def squares(page: Browser) -> list[tuple[str, list[str]]]:
    """The colors of the edge of each slab, and of its small squares: what the browser has drawn."""
    page.wait(lambda: page.run(IDLE))
    tiles = len(page.data("codes tiles 0")["codes"]) // len(page.data("frames tiles 0")["seconds"])
    side, columns = page.run(
        "const map = Bokeh.documents[0].get_model_by_name('map tiles 0');"
        "return [map.frame_width / map.x_range.end, map.x_range.end]"
    )
    # Bokeh draws an image half a pixel further right and down, so its first pixel is at 1.
    inside = [
        (2 + (at % 7 + 0.4) * (side - 2) / 7, 2 + (at // 7 + 0.4) * (side - 2) / 6)
        for at in range(SLAB_BLOCKS)
    ]
    offsets = [(1.5, 1.5), *inside]
    places = [
        (tile % columns + left / side, tile // columns + top / side)
        for tile in range(tiles)
        for left, top in offsets
    ]
    drawn = page.colors("map tiles 0", places)
    each = len(offsets)
    return [(drawn[at], drawn[at + 1 : at + each]) for at in range(0, len(drawn), each)]


def lit(page: Browser) -> tuple[int, int, int]:
    """Count small squares that are found and computed again, and slabs of the checkpoint."""
    shown = squares(page)
    attention = [square for edge, inside in shown if edge != colors.INK for square in inside]
    checkpoint = [inside for edge, inside in shown if edge == colors.INK]
    assert all(set(inside) == {colors.FOUND} for inside in checkpoint)
    return attention.count(colors.FOUND), attention.count(colors.AGAIN), len(checkpoint)


def assert_slabs_show_their_blocks(page: Browser) -> None:
    """At the start, and late at a moment without a hit: slabs are as full as the frame says."""
    seconds = duration(page)
    began = page.data("hits tiles 0")["seconds"]
    lit_for = 10 * seconds / 399
    late = next(
        at
        for at in range(398, 0, -1)
        if not any(-0.01 < seconds * at / 399 - time < lit_for + 0.01 for time in began)
    )
    times, columns = page.data("frames tiles 0")["seconds"], page.data("codes tiles 0")
    tiles = len(columns["codes"]) // len(times)
    for moment in (0, late):
        page.set("time", moment)
        assert "No request begins" in page.text("hit tiles 0")
        now = seconds * moment / 399
        frame = max(sum(time <= now for time in times) - 1, 0)
        part = slice(frame * tiles, (frame + 1) * tiles)
        wanted = zip(*(columns[name][part] for name in ("codes", "live", "used")), strict=True)
        for (_, inside), (code, live, used) in zip(squares(page), wanted, strict=True):
            running, left = list(OWNERS.values())[(code + 1) // 2]
            if code in {1, 2}:
                rest = SLAB_BLOCKS - used
                assert inside == [running] * live + [left] * (used - live) + [WHITE] * rest
            else:
                assert set(inside) == {running if live else left}  # one large square


WHITE = colors.UNUSED


def assert_hits_are_lit(page: Browser, result: dict[str, Any]) -> None:
    """The blocks of a hit are those of its tokens, up to a checkpoint, and the rest are red."""
    requests, hits = page.data("requests 0"), page.data("hits tiles 0")
    assert sum(requests["hit"]) == result["hit_tokens"]
    assert hits["seconds"] == requests["seconds"]  # so few requests are all shown
    seen, end = 0, duration(page)
    for at in range(0, len(requests["hit"]) - 1, 15):
        moment = math.ceil(requests["seconds"][at] / end * 399)
        if requests["seconds"][at + 1] <= moment / 399 * end:
            continue  # another request has begun at that moment
        page.set("time", moment)
        assert f"Request {requests['request'][at]:,} finds" in page.text("hit tiles 0")
        found, again, checkpoint = lit(page)
        assert found * BLOCK_TOKENS == requests["hit"][at]
        assert again == -(-(requests["again"][at] - requests["hit"][at]) // BLOCK_TOKENS)
        assert checkpoint == (STATE_GROUPS if requests["hit"][at] else 0)
        seen += bool(found and again)
    assert seen > 3


def assert_a_line_shows_the_time(page: Browser, plots: list[str]) -> None:
    """Also after a zoom, and at the same time in each plot."""
    axis = f"Bokeh.documents[0].get_model_by_name('{plots[0]}').x_range"
    seconds = page.run(f"return {axis}.end")
    for time_shown, end in ((0, 1.0), (100, 1.0), (100, 0.5)):
        page.set("time", time_shown)
        page.run(f"{axis}.end = {end * seconds}")
        for plot in plots:
            drawn, wanted, height = page.mark(plot, seconds)
            assert drawn == pytest.approx(wanted, abs=1)
            assert height > 100
    page.run(f"{axis}.end = {seconds}")


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """``view``, and the address that it prints."""
    code = "from hybrid_blocks.tools.cli import app; app()"
    serve = [sys.executable, "-u", "-c", code, "view", "--port", "0", *arguments]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[0]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as printed:
        yield printed


@pytest.fixture
def served(window: Browser, address: str) -> Iterator[Browser]:
    """A window whose pages fetch from their own server alone."""
    window.errors()
    yield window
    assert not window.errors()
    assert all(name.startswith(address) for name in window.fetched())


def says(page: Browser, box: str, words: str) -> None:
    """Wait until a box of text holds some words."""
    page.wait(lambda: words in page.text(box))


MOVED = (
    ("memory", "30GiB", ("--memory", "30GiB")),
    ("model", "Qwen3-Next-80B-A3B", ()),
    ("tp", "4", ("--tp", "4")),
    ("format", "fp8", ("--kv-cache-dtype", "fp8")),
    ("drafts", 2, ("--speculative", "mtp:2")),
    ("most", "64", ("--max-num-seqs", "64")),
    ("longest", "32k", ("--max-model-len", "32k")),
)
"""Each control of the plan, a value for it, and the same as options of ``plan``."""


def test_a_served_page_plans_what_its_controls_say(served: Browser, address: str) -> None:
    served.open(address)
    served.picture(PICTURES / "view.png", 1420)
    asked: dict[str, tuple[str, ...]] = {"memory": ("--memory", "24GiB")}
    model = "Qwen3.5-27B"
    for name, value, options in MOVED:
        model = str(value) if name == "model" else model
        asked[name] = options
        served.set(name, value)
        if name == "drafts":  # a page asks once the slider is let go
            served.set(name, value, "value_throttled")
        words = [word for one in asked.values() for word in one]
        report: dict[str, Any] = json.loads(
            answer("plan", model, *words, "--lengths", "8k", "--json", "-")
        )
        for side in ("vllm", "natural"):
            (full,) = (one for one in report[side]["lengths"] if one["length"] == 8192)
            wanted = f"<b>{int(full['running']):,}"
            says(served, "head", wanted)


ELEMENTS = """
const found = [], walk = node => {
  for (const child of node.querySelectorAll('*')) {
    found.push(child.tagName.toLowerCase())
    if (child.shadowRoot) walk(child.shadowRoot)
  }
}
walk(document)
return found
"""


def assert_names_are_text(page: Browser, box: str) -> None:
    """A page shows a name letter by letter: no script ran, and none waits for a click."""
    assert page.run("return window.ran") is None
    assert not {"a", "img", "svg", "mjx-container"} & set(page.run(ELEMENTS))
    assert TEX in page.run(f"return Bokeh.index.find_one({MODEL}).markup_el.textContent", box)


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_names_of_others_run_nothing_in_a_file(page: Browser, tmp_path: Path, command: str) -> None:
    path = tmp_path / "page.html"
    if command == "plan":
        answer("plan", write_config(tmp_path), "--memory", "64MiB", "--html", path)
    else:
        options = ("--model", "Granite-4.0-Micro", "--memory", "1GiB")
        answer("replay", write_trace(tmp_path), *options, "--html", path)
    page.open(path.as_uri())
    assert_names_are_text(page, "title")
    assert TEX in page.driver.title


def test_names_of_others_run_no_script_in_a_served_page(window: Browser, tmp_path: Path) -> None:
    with serving(str(write_config(tmp_path)), "--memory", "64MiB") as address:
        window.open(address)
        assert_names_are_text(window, "title")
        window.set("memory", "1KiB")
        window.wait(lambda: window.text("error"))
        assert_names_are_text(window, "title")
    window.errors()


OPENS = """
const [address, token, done] = arguments
try {
  const socket = new WebSocket(address, ['bokeh', token])
  socket.onmessage = () => done('greeted')
  socket.onerror = () => done('refused')
} catch (error) {
  done(error.name)
}
"""


def test_another_name_of_the_machine_reads_no_page(window: Browser, address: str) -> None:
    """All names lead to this machine in the browser, as those of a hostile name server do."""
    with urllib.request.urlopen(address) as answer:
        token = re.findall('"token":"([^"]+)"', answer.read().decode())[0]
    host, _, path = address.removeprefix("http://").partition("/")
    evil = f"evil.example:{host.rpartition(':')[2]}"
    for tried in (f"http://{host}/", f"http://{evil}/", f"http://{evil}/{path}"):
        window.driver.get(tried)
        assert window.run("return document.body.textContent") == "403: Forbidden"
    assert window.run("return location.host") == evil
    for socket in (f"ws://{evil}/{path}ws", f"ws://{host}/{path}ws", f"ws://{evil}/ws"):
        assert window.driver.execute_async_script(OPENS, socket, token) == "refused"
    window.driver.get(f"http://{host}/")
    assert window.driver.execute_async_script(OPENS, f"ws://{host}/{path}ws", token) == "greeted"


def drawn(tiles: dict[str, list[Any]], what: str) -> float:
    """MiB of the tiles that show something; a tenth of each is a gap."""
    edges = zip(*(tiles[name] for name in ("left", "right", "bottom", "top", "what")), strict=True)
    own = [it[:4] for it in edges if it[4].startswith(what)]
    area: float = sum((right - left) / 0.92 * (top - low) / 0.9 for left, right, low, top in own)
    return area
