"""The live page: readings become points, and the page waits for an engine that goes away."""

import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.models.annotations import Legend
from hybrid_blocks.cli import app
from hybrid_blocks.metrics import engine as figures
from hybrid_blocks.top.errors import GoneError
from hybrid_blocks.top.reading import Reading, parse
from hybrid_blocks.view.live_page import LivePage
from hybrid_blocks.view.live_series import COLUMNS, ENDS
from shown import shown
from typer.testing import CliRunner


class AtOnce(Executor):
    """Runs a call where it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as executors do
            future.set_exception(error)
        return future


class Engine:
    """Answers with the texts of a script, one after the other; None for no answer."""

    def __init__(self, *texts: str | None) -> None:
        self._texts = list(texts)
        self.seconds = 0.0
        self.asked: list[tuple[str, str | None]] = []

    def read(self, url: str, engine: str | None) -> Reading:
        self.asked.append((url, engine))
        self.seconds += 2.0
        answer = self._texts.pop(0)
        if answer is None:
            raise GoneError("Connection refused")
        return parse(answer, self.seconds, engine)


def open_page(engine: Engine, address: str = "localhost:8000") -> Document:
    document = Document()
    LivePage(address, engine.read, AtOnce(), lambda: engine.seconds).show(document)
    return document


def tick(page: Document, times: int = 1) -> None:
    (callback,) = page.session_callbacks
    for _ in range(times):
        callback.callback()


def column(page: Document, name: str) -> list[float]:
    source: Any = page.get_model_by_name("readings")
    return [float(value) for value in source.data[name]]


def words(page: Document, name: str) -> str:
    box: Any = page.get_model_by_name(name)
    return str(box.text)


def test_readings_become_points(tmp_path: Path) -> None:
    engine = Engine(*(shown(tmp_path, "natural", steps, offloads=True) for steps in (1, 2, 3)))
    page = open_page(engine)
    tick(page, 3)
    assert engine.asked == [("http://localhost:8000/metrics", None)] * 3
    assert column(page, "seconds") == [2.0, 4.0]
    assert (column(page, "running"), column(page, "waiting")) == ([12, 12], [3, 3])
    assert (column(page, "attention"), column(page, "free")) == ([412, 412], [119, 119])
    assert column(page, "host_held_bytes") == [3, 3]
    assert math.isnan(column(page, "complete")[0])  # a rate needs two readings
    assert column(page, "complete")[1] == 30
    assert [column(page, name)[1] for name in ("written", "used", "dropped")] == [12.5, 20, 7.5]
    assert column(page, "found")[1] == 62.5
    assert "slabs 663" in words(page, "frame")
    legends: Any = page.roots[0].select({"type": Legend})
    named = {item.label.value for legend in legends for item in legend.items if item.visible}
    assert {"attention", "states", "free", "no checkpoint"} < named
    assert not {"live", "cached", "alignment"} & named


def test_an_engine_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    engine = Engine(
        shown(tmp_path, "natural", 5), None, shown(tmp_path, "natural"), shown(tmp_path, "manager")
    )
    page = open_page(engine)
    tick(page, 3)
    assert "no figures: Connection refused; waiting for the engine" in words(page, "told")
    assert "slabs 663" in words(page, "frame")
    assert math.isnan(column(page, "running")[-1])
    tick(page)
    assert words(page, "told") == ""
    assert math.isnan(column(page, "complete")[-1])  # no rate over the gap
    assert column(page, "running")[-1] == 12


def test_blocks_stand_for_slabs_below_level_natural(tmp_path: Path) -> None:
    page = open_page(Engine(shown(tmp_path, "manager"), shown(tmp_path, "manager")))
    tick(page, 2)
    assert (column(page, "live"), column(page, "cached")) == ([334], [125])
    assert column(page, "states") == [0]


def test_another_address_begins_anew(tmp_path: Path) -> None:
    text = shown(tmp_path, "natural") + shown(tmp_path, "natural", engine="2")
    engine = Engine(text, text, text)
    page = open_page(engine, "")
    tick(page)
    assert not engine.asked
    assert "Name an engine" in words(page, "told")
    address: Any = page.get_model_by_name("address")
    address.value = "ftp://nowhere"
    tick(page)
    assert "is no address" in words(page, "told")
    address.value = "host:1"
    tick(page, 2)
    assert column(page, "running") == [24]
    label: Any = page.get_model_by_name("engine")
    label.value = "2"
    assert column(page, "running") == []
    tick(page)
    assert engine.asked[-1] == ("http://host:1/metrics", "2")


def test_every_end_of_a_hit_has_a_color() -> None:
    assert set(ENDS) == set(figures.ENDS)
    assert len(COLUMNS) == len(set(COLUMNS))


def test_an_address_that_is_none_is_refused_before_the_page_is_served() -> None:
    result = CliRunner().invoke(app, ["view", "--live", "ftp://nowhere", "--port", "0"])
    assert result.exit_code == 2
    assert "is no address" in result.stderr


@pytest.mark.parametrize("path", ["/", "/rollout", "/live"])
def test_pages_link_to_each_other(path: str) -> None:
    from hybrid_blocks.view.server import PAGES, navigation  # noqa: PLC0415

    assert navigation(path).text.count("<a ") == len(PAGES) - 1
