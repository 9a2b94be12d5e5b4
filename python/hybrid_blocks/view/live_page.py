"""The live page: what an engine shows on ``/metrics``, over time."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Final

from bokeh.document import Document
from bokeh.layouts import column, gridplot, row
from bokeh.models import ColumnDataSource, NumeralTickFormatter, Range1d
from bokeh.models.annotations import Legend, LegendItem
from bokeh.models.widgets import TextInput
from bokeh.plotting import figure
from rich.text import Text

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.top.errors import GoneError
from hybrid_blocks.top.frame import View, frame
from hybrid_blocks.top.read import metrics_url, read_engine
from hybrid_blocks.top.reading import Change, Reading
from hybrid_blocks.view.live_series import (
    CHECKPOINTS,
    COLUMNS,
    ENDS,
    OWNERS,
    REQUESTS,
    TIERS,
    gap,
    point,
)
from hybrid_blocks.view.page import WIDTH, footer, safe, text

INTERVAL_MS: Final = 2000
MOST_POINTS: Final = 1800
"""An hour of readings."""
SHOWN_S: Final = 600
EXAMPLE: Final = "localhost:8000"
_FRAME_WIDTH: Final = 100
_LEAST_SHOWN_S: Final = 60

_FOOT: Final = (
    "Rates are those between two readings. Engines below level natural show blocks by their state."
)

Read = Callable[[str, str | None], Reading]


class LivePage:
    """Fields, and figures that grow with each reading. Readings run beside the page's server."""

    def __init__(
        self,
        address: str = "",
        read: Read = read_engine,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._executor = executor or ThreadPoolExecutor(1, "live")
        self._pending: Future[Reading] | None = None
        self._last: Reading | None = None
        self._began = clock()
        self._source = ColumnDataSource({name: [] for name in COLUMNS}, name="readings")
        self._address = _field("Address of the engine", "address", address, EXAMPLE, 300)
        self._engine = _field("Engine's label", "engine", "", "all", 110)
        for field in (self._address, self._engine):
            field.on_change("value", self._ask_anew)
        self._told, self._frame = text(name="told"), text(name="frame")
        self._x_range = Range1d(start=0, end=_LEAST_SHOWN_S)
        self._plots: list[tuple[Any, Mapping[str, Any], bool]] = []
        self._say(None if address else "Name an engine: its host and port.")

    def show(self, document: Document, *above: Any) -> None:
        """Fill a browser's document, and read on while it is open."""
        document.title = "hybrid-blocks live"
        plots = [
            [self._lines("requests", REQUESTS), self._lines("prompt tokens found, %", _FOUND)],
            [self._areas("slabs by owner", OWNERS), self._areas("hits a second by end", ENDS)],
            [self._lines("checkpoints a second", CHECKPOINTS), self._lines("tiers, GiB", TIERS)],
        ]
        document.add_root(
            column(
                *above,
                text("<h1>An engine, live</h1>"),
                row(self._address, self._engine),
                self._told,
                gridplot(plots, toolbar_location=None, sizing_mode="stretch_width"),
                self._frame,
                footer(None, _FOOT),
                sizing_mode="stretch_width",
                styles={"max-width": f"{WIDTH}px", "margin": "0 auto", "padding": "12px"},
            )
        )
        document.add_periodic_callback(self.tick, INTERVAL_MS)
        document.on_session_destroyed(self._end)

    def tick(self) -> None:
        """Show a reading that has come, and ask for the next one."""
        if self._pending is not None:
            if not self._pending.done():
                return
            done, self._pending = self._pending, None
            self._take(done)
        if not (address := self._address.value.strip()):
            return
        try:
            url = metrics_url(address)
        except InvalidArgumentError as error:
            self._say(str(error))
            return
        self._pending = self._executor.submit(self._read, url, self._engine.value.strip() or None)

    def _ask_anew(self, _attribute: str, _old: Any, _new: Any) -> None:
        """Forget the engine before, whose figures are no part of this one's."""
        self._pending = self._last = None
        self._began = self._clock()
        self._source.data = {name: [] for name in COLUMNS}
        self._frame.text = ""
        self._say("waiting for the engine's first answer")

    def _take(self, done: "Future[Reading]") -> None:
        seconds = self._clock() - self._began
        try:
            now = done.result()
        except GoneError as error:
            self._say(f"no figures: {error}; waiting for the engine")
            self._last = None
            self._add(gap(seconds))
            return
        except InvalidArgumentError as error:
            self._say(str(error))
            return
        self._say(None)
        self._add(point(Change(self._last, now), seconds))
        shown = frame(View(self._address.value, self._last, now), _FRAME_WIDTH)
        self._frame.text = f"<h2>As top shows it</h2><pre>{_plain(shown)}</pre>"
        self._last = now

    def _add(self, values: Mapping[str, float]) -> None:
        self._source.stream({name: [value] for name, value in values.items()}, MOST_POINTS)
        end = max(values["seconds"], _LEAST_SHOWN_S)
        self._x_range.update(start=max(0, end - SHOWN_S), end=end)
        # Bokeh's own ranges complain of columns that hold no figure yet.
        for plot, items, is_stacked in self._plots:
            highest = {name: _highest([self._source.data[name]]) for name in items}
            for name, item in items.items():
                item.visible = item.visible or highest[name] > 0
            columns = [self._source.data[name] for name in items]
            top = _highest(columns) if is_stacked else max(highest.values())
            plot.y_range.end = 1.08 * top or 1

    def _say(self, problem: str | None) -> None:
        told = "" if problem is None else f'<p class="warn">{safe(problem)}</p>'
        if self._told.text != told:
            self._told.text = told

    def _end(self, _session: Any) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _lines(self, title: str, series: Mapping[str, str]) -> Any:
        plot = self._figure(title)
        drawn = [
            plot.line("seconds", name, source=self._source, color=color, line_width=2)
            for name, color in series.items()
        ]
        return self._with_legend(plot, dict(zip(series, drawn, strict=True)), is_stacked=False)

    def _areas(self, title: str, series: Mapping[str, str]) -> Any:
        plot = self._figure(title)
        drawn = plot.varea_stack(
            list(series), x="seconds", source=self._source, color=list(series.values())
        )
        return self._with_legend(plot, dict(zip(series, drawn, strict=True)), is_stacked=True)

    def _with_legend(self, plot: Any, drawn: Mapping[str, Any], *, is_stacked: bool) -> Any:
        """Name what is drawn above the plot; of areas only those that were ever seen."""
        items = {
            name: LegendItem(label=_words(name), renderers=[it], visible=not is_stacked)
            for name, it in drawn.items()
        }
        legend = Legend(
            items=list(items.values()),
            orientation="horizontal",
            label_text_font_size="11px",
            border_line_color=None,
        )
        plot.add_layout(legend, "above")
        self._plots.append((plot, items, is_stacked))
        return plot

    def _figure(self, title: str) -> Any:
        plot: Any = figure(
            height=240,
            x_range=self._x_range,
            y_range=Range1d(start=0, end=1),
            tools="",
            toolbar_location=None,
            title=title,
        )
        plot.xaxis.axis_label = "seconds"
        plot.axis.formatter = NumeralTickFormatter(format="0,0.[0]")
        plot.outline_line_color = "#c9ced6"
        return plot


_FOUND: Final = {"found": "#2a6f4e"}


def _highest(columns: list[Any]) -> float:
    """Return the highest sum of a row; a value that is no figure counts nothing."""
    rows = zip(*columns, strict=True)
    return max((sum(value for value in one if value == value) for one in rows), default=0)  # noqa: PLR0124 - NaN


def _words(name: str) -> str:
    return name.removesuffix("_bytes").replace("_held", " memory").replace("_", " ")


def _plain(shown: Text) -> str:
    return safe(shown.plain).replace("<br>", "\n")


def _field(title: str, name: str, value: str, hint: str, width: int) -> TextInput:
    return TextInput(title=title, value=value, placeholder=hint, width=width, name=name)
