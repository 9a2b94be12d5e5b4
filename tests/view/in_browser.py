"""Pages in a real browser; run by ``make test-pages``, which leaves pictures in ``build/pages``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser, browser
from hybrid_blocks.cli import app
from typer.testing import CliRunner

PICTURES = Path("build/pages")
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
    page.picture(PICTURES / "plan.png", 1420)
    lengths = page.run(
        "return JSON.parse(Bokeh.documents[0].get_model_by_name('state').data.json[0]).lengths"
    )
    for at, full in enumerate(report["natural"]["lengths"]):
        theirs = report["vllm"]["lengths"][at]
        page.set("length", lengths.index(full["length"]))
        words = page.text("head")
        assert f"<b>{theirs['running']:,.2f}x</b> requests of {full['length']:,} tokens" in words
        assert f"<b>{full['running']:,.2f}x</b>" in words
        for name, one in (("vllm", theirs), ("natural", full)):
            tiles = page.data(f"{name} map")
            assert drawn(tiles, "read") == pytest.approx(one["budget"]["live"] / 2**20, rel=0.1)


def drawn(tiles: dict[str, list[Any]], what: str) -> float:
    """MiB of the tiles that show something; a tenth of each is a gap."""
    edges = zip(*(tiles[name] for name in ("left", "right", "bottom", "top", "what")), strict=True)
    return sum(
        (right - left) / 0.92 * (top - bottom) / 0.9
        for left, right, bottom, top, words in edges
        if words.startswith(what)
    )
