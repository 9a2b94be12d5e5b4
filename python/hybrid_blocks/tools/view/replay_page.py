"""The page of a replay: slabs change hands, and prompts are found or computed again."""

from itertools import cycle
from typing import Any, Final

import numpy as np
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    HoverTool,
    LayoutDOM,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.models.widgets import Slider, Toggle
from bokeh.plotting import figure

from hybrid_blocks.tools.replay.report import rows
from hybrid_blocks.tools.view import page
from hybrid_blocks.tools.view.arena_map import ArenaMap
from hybrid_blocks.tools.view.page import WIDTH, MadeBy, document, footer, legend, read, safe, text
from hybrid_blocks.tools.view.replay_picture import ReplayPicture, Run

MOMENTS: Final = 400

LINES: Final = ("#2a6f4e", "#7b5ea7", "#b8860b", "#c2185b", "#1b6ca8", "#8a8f98")
NEW: Final = "#c3c8cf"

WITHOUT_VLLM: Final = (
    "vLLM was not replayed: <code>--manager rust --manager vllm</code> replays its manager too."
)

WITHOUT_ARENA: Final = (
    "{} has no map: in vLLM all groups share one pool of equal blocks, so no memory changes hands. "
    "The next chart shows how many of its blocks are in use."
)
OVER_HOST: Final = "{} has no map: a map shows a device without host memory below it."

MANAGER: Final = (
    "Manager rust is the core of this package; vLLM runs it at level natural. Manager vllm is "
    "vLLM's own."
)

TO_TIME: Final = (
    "slider.value = Math.max(0, Math.min(Math.ceil(cb_obj.x / moments[1]), slider.end))"
)
"""Moves the slider to the time of a click on a chart."""

_TOLD: Final = [
    ("request", "@request{0,0}"),
    ("found", "@hit{0,0} of @prompt{0,0} tokens"),
    ("", "@story"),
]


class ReplayPage:
    """The models of a page, and the script that shows it at a time."""

    def __init__(self, picture: ReplayPicture, made_by: MadeBy | None = None) -> None:
        self._picture = picture
        self._x_range = Range1d(start=0, end=picture.seconds)
        self._plots: list[LayoutDOM] = []
        moments = np.linspace(0, picture.seconds, MOMENTS).tolist()
        slider = Slider(
            start=0,
            end=MOMENTS - 1,
            value=_first_shown(picture),
            step=1,
            title="Virtual time, seconds",
            format=CustomJSTickFormatter(
                code="return moments[Math.round(tick)].toFixed(1)", args={"moments": moments}
            ),
            width=WIDTH - 140,
            name="time",
        )
        self._to_time = CustomJS(args={"slider": slider, "moments": moments}, code=TO_TIME)
        button = Toggle(label="▶ Play", width=100, name="play")
        button.js_on_change(
            "active", CustomJS(args={"slider": slider, "button": button}, code=read("play.js"))
        )
        self._samples = [ColumnDataSource(dict(run.samples)) for run in picture.runs]
        self._requests = [
            ColumnDataSource(run.requests, name=f"requests {index}")
            for index, run in enumerate(picture.runs)
        ]
        now = text(name="now")
        maps = [
            None
            if run.arena is None
            else ArenaMap(run, run.arena, slider, moments, f"tiles {index}")
            for index, run in enumerate(picture.runs)
        ]
        prompts = [
            self._prompts(run, source)
            for run, source in zip(picture.runs, self._requests, strict=True)
        ]
        shown = [self._pool(), self._load(), self._hits(), *prompts]
        self.script = CustomJS(
            args={
                "slider": slider,
                "moments": moments,
                "sampled": self._samples,
                "asked": self._requests,
                "names": [safe(run.name) for run in picture.runs],
                "films": [None if drawn is None else drawn.film for drawn in maps],
                "now": now,
            },
            code=read("last.js") + read("replay.js"),
        )
        self._scripts = [self.script, *(drawn.script for drawn in maps if drawn is not None)]
        for script in self._scripts:
            slider.js_on_change("value", script)
        self._mark = CustomJS(
            args={"slider": slider, "moments": moments, "plots": self._plots}, code=read("mark.js")
        )
        slider.js_on_change("value", self._mark)
        for edge in ("start", "end"):
            self._x_range.js_on_change(edge, self._mark)
        marks = legend(
            {
                "found": page.swatch(page.FOUND),
                "computed again": page.swatch(page.AGAIN),
                "new": page.swatch(NEW),
            }
        )
        self.root = column(
            text(head(picture), name="title"),
            row(button, slider),
            now,
            *(part for drawn in maps if drawn is not None for part in drawn.parts),
            *(text(_without_map(run)) for run in picture.runs if run.arena is None),
            text("<h2>Use of the memory, requests, and prompt tokens found</h2>"),
            *shown[:3],
            text(f"<h2>Each prompt, when it first runs</h2>{marks}"),
            *shown[3:],
            text(_table(picture)),
            footer(made_by, MANAGER),
            styles={"max-width": f"{WIDTH}px", "margin": "0 auto", "padding": "12px"},
        )

    def document(self) -> Document:
        """Return a document that shows the page."""
        title = f"Replay of {self._picture.trace}"
        return document(self.root, title, *self._scripts, self._mark)

    def _figure(self, height: int, label: str, **options: Any) -> Any:
        plot = figure(
            width=WIDTH,
            height=height,
            x_range=self._x_range,
            tools="xpan,xwheel_zoom,xbox_zoom,reset",
            active_drag=None,
            y_axis_label=label,
            output_backend="canvas",
            **options,
        )
        plot.toolbar.logo = None
        plot.js_on_event("tap", self._to_time)
        plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
        plot.yaxis.formatter = NumeralTickFormatter(format="0,0")
        self._plots.append(plot)
        return plot

    def _each(self) -> Any:
        return zip(self._picture.runs, self._samples, self._requests, cycle(LINES), strict=False)

    def _pool(self) -> LayoutDOM:
        plot = self._figure(200, "blocks in use, %", y_range=Range1d(start=0, end=103))
        for run, samples, _, color in self._each():
            plot.step("seconds", "use", source=samples, color=color, legend_label=run.name)
        return _placed(plot)

    def _load(self) -> LayoutDOM:
        plot = self._figure(200, "requests")
        for run, samples, _, color in self._each():
            name = f"{run.name}: running"
            plot.step("seconds", "running", source=samples, color=color, legend_label=name)
            plot.step(
                *("seconds", "waiting"),
                source=samples,
                color=color,
                line_dash="dotted",
                legend_label=f"{run.name}: waiting",
            )
        return _placed(plot)

    def _hits(self) -> LayoutDOM:
        plot = self._figure(220, "found so far, %", y_range=Range1d(start=0, end=101))
        for run, _, requests, color in self._each():
            plot.line(
                *("seconds", "share"),
                source=requests,
                color=color,
                line_width=2,
                legend_label=f"{run.name}: {run.hit_rate}",
            )
        if self._picture.bound is not None:
            bound, end = 100 * self._picture.bound, self._picture.seconds
            plot.line(
                [0, end],
                [bound, bound],
                color="#1b1f24",
                line_dash="dotted",
                legend_label=f"attention alone, nothing evicted: {self._picture.bound:.1%}",
            )
        return _placed(plot)

    def _prompts(self, run: Run, source: ColumnDataSource) -> LayoutDOM:
        plot = self._figure(230, "tokens", title=run.name, name=f"prompts of {run.name}")
        width = max(1.0, min(6.0, 0.6 * WIDTH / max(len(run.requests["request"]), 1)))
        drawn = [
            plot.segment(
                *("seconds", low, "seconds", high), source=source, color=color, line_width=width
            )
            for low, high, color in (
                ("again", "prompt", NEW),
                ("hit", "again", page.AGAIN),
                (0, "hit", page.FOUND),
            )
        ]
        plot.add_tools(HoverTool(renderers=drawn, tooltips=_TOLD))
        plot.xaxis.axis_label = "virtual time, seconds"
        plot.y_range.start = 0
        drawing: LayoutDOM = plot
        return drawing


def _first_shown(picture: ReplayPicture) -> int:
    """Return the moment near the middle at which a hit and what is computed again are lit."""
    middle = MOMENTS // 2
    arena = picture.runs[0].arena
    if arena is None:
        return middle
    told = (arena.hits.sums("resumed") > 0) & (arena.hits.sums("again") > 0)
    lit = np.ceil(arena.hits.columns["seconds"][told] / picture.seconds * (MOMENTS - 1))
    return int(min(lit.tolist(), key=lambda moment: abs(moment - middle), default=middle))


def _placed(plot: Any) -> LayoutDOM:
    """Put the legend beside the plot's lines, in one row above them."""
    plot.legend.orientation = "horizontal"
    plot.legend.location = "top_left"
    plot.legend.label_text_font_size = "12px"
    plot.add_layout(plot.legend[0], "above")
    made: LayoutDOM = plot
    return made


def head(picture: ReplayPicture) -> str:
    """Say what was replayed, and what came of it."""
    runs = "".join(
        f'<div class="side">{safe(run.name)}<br><b>{run.hit_rate}</b> of prompt tokens found<br>'
        f"{safe(run.figures['peak running'])} at once at most; "
        f"preemptions: {safe(run.figures['preemptions'])}{_times(run)}</div>"
        for run in picture.runs
    )
    without = ""
    if picture.lacks_vllm and len(picture.runs) == 1:
        # The figures of one manager leave half of the line empty.
        runs += f'<div class="side">{WITHOUT_VLLM}</div>'
    elif picture.lacks_vllm:
        without = f"<p>{WITHOUT_VLLM}</p>"
    served = picture.runs[0].figures
    return (
        f"<h1>Replay of {safe(picture.trace)}</h1><p>{safe(picture.engine)}</p>"
        f"<p>{safe(served['requests'])} requests, {safe(served['prompt tokens'])} prompt tokens. "
        "These are the figures of <code>hybrid-blocks replay</code>, in virtual time.</p>"
        f"{without}"
        f'<div class="sides">{runs}</div>'
    )


def _without_map(run: Run) -> str:
    """Say why a run has no map."""
    why = OVER_HOST if run.has_host else WITHOUT_ARENA
    return f"<p>{why.format(safe(run.name))}</p>"


def _times(run: Run) -> str:
    """Say the times of a card, where one was named."""
    shown = (
        f"<br>{name}: {safe(run.figures[name])}"
        for name in ("time to first token", "time a token", "output tokens a second")
        if name in run.figures
    )
    return "".join(shown)


def _table(picture: ReplayPicture) -> str:
    """Return the table of ``replay``."""
    names_row = "".join(f"<th>{safe(run.name)}</th>" for run in picture.runs)
    lines = "".join(
        f"<tr><td>{safe(name)}</td>{''.join(f'<td>{safe(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows([run.figures for run in picture.runs])
    )
    return f"<h2>All figures</h2><table><tr><th></th>{names_row}</tr>{lines}</table>"
