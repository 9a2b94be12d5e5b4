"""The page of a plan: memory to scale, requests over their length, and where bytes go."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import (
    CDSView,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    FixedTicker,
    GroupFilter,
    HoverTool,
    InlineStyleSheet,
    LayoutDOM,
    Range1d,
)
from bokeh.models.annotations import Span, Title
from bokeh.models.widgets import Slider
from bokeh.plotting import figure

from hybrid_blocks.tools.plan.report.figures import PARTS
from hybrid_blocks.tools.view import page
from hybrid_blocks.tools.view.page import (
    FLUID,
    STACKED,
    WIDTH,
    MadeBy,
    document,
    footer,
    legend,
    read,
    safe,
    text,
)
from hybrid_blocks.tools.view.plan_picture import PlanPicture

HATCHED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rounding": page.dotted(page.ROUNDED, page.ROUNDING),
        "padding": page.hatched(page.PADDED, page.PADDING),
        "null": page.swatch(page.NULL),
        "unused": page.swatch(page.UNUSED),
        "tail": page.swatch(page.TAIL),
    }
)

LINES: Final = ("#8a8f98", "#2a6f4e")
"""Colors of vLLM's plan, and of the natural one."""

LEVEL: Final = (
    "Level natural is vLLM with this package and HYBRID_BLOCKS=natural: attention and states share "
    "slabs of one memory, in blocks of their own sizes."
)

_SAME: Final = (
    "There is no difference in memory for this model: both maps are alike, and both curves are one."
)

_EDGES: Final[dict[str, Any]] = {
    "left": "left",
    "right": "right",
    "bottom": "bottom",
    "top": "top",
    "line_color": None,
}

_HATCHES: Final[dict[str, dict[str, Any]]] = {
    "solid": {"fill_color": "color"},
    "rounding": {
        "fill_color": page.ROUNDED,
        "hatch_pattern": "dot",
        "hatch_color": page.ROUNDING,
        "hatch_scale": 6,
    },
    "padding": {
        "fill_color": page.PADDED,
        "hatch_pattern": "right_diagonal_line",
        "hatch_color": page.PADDING,
        "hatch_scale": 6,
        "hatch_weight": 1,
    },
}
"""How quads of each kind look. One hatch for all of a kind: one for each quad is slow to draw."""

_FORMAT: Final = """
const length = JSON.parse(state.data.json[0]).lengths[Math.round(tick)]
return length === undefined ? '' : length.toLocaleString('en-US')
"""

_COMMAS: Final = "return tick.toLocaleString('en-US')"


class PlanPage:
    """The models of a page, and the script that fills them.

    Attributes:
        state: holds the picture as JSON; a change of it draws the page again.
        slider: the index of the length that is shown.
        root: what a document shows.
        script: draws the page.
    """

    def __init__(
        self, picture: PlanPicture, *above: LayoutDOM, made_by: MadeBy | None = None
    ) -> None:
        self.state = ColumnDataSource({"json": [encode(picture)]}, name="state")
        self.slider = Slider(
            start=0,
            end=len(picture.lengths) - 1,
            value=picture.start,
            step=1,
            title="Request length, tokens",
            format=CustomJSTickFormatter(code=_FORMAT, args={"state": self.state}),
            name="length",
            **FLUID,
        )
        self._title, self._legend, self._notes = text(name="title"), text(), text()
        self.tell(picture)
        self._head, self._bytes = text(name="head"), text()
        self._args: dict[str, object] = {}
        maps, strip, curves = self._maps(), self._strip(), self._curves()
        self.script = CustomJS(
            args={
                **self._args,
                "state": self.state,
                "slider": self.slider,
                "head": self._head,
                "bytes": self._bytes,
                "parts": dict(PARTS),
                "colors": {
                    "owners": dict(page.OWNERS),
                    "rounding": page.ROUNDING,
                    "padding": page.PADDING,
                    "null": page.NULL,
                    "unused": page.UNUSED,
                    "tail": page.TAIL,
                },
            },
            code=read("plan.js"),
        )
        self.slider.js_on_change("value", self.script)
        self.state.js_on_change("data", self.script)
        self.root = column(
            self._title,
            *above,
            self.slider,
            self._head,
            self._legend,
            maps,
            text("<h2>One request, to scale</h2>"),
            strip,
            text("<h2>Requests at once, by their length</h2>"),
            curves,
            text("<h2>Where each byte goes</h2>"),
            self._bytes,
            self._notes,
            footer(made_by, LEVEL),
            sizing_mode="stretch_width",
            styles={"max-width": f"{WIDTH}px", "margin": "0 auto", "padding": "12px"},
        )

    def document(self) -> Document:
        """Return a document that shows the page."""
        return document(self.root, f"Plan of {self._model}", self.script)

    def tell(self, picture: PlanPicture) -> None:
        """Say what was planned, and what to know of it."""
        self._model = picture.model
        verdict = "".join(f"<p><b>{safe(line)}</b></p>" for line in picture.verdict)
        self._title.text = (
            f"<h1>{safe(picture.model)}</h1>"
            f"<p>{safe(picture.layers)}</p><p>{safe(picture.deployment)}</p>{verdict}"
            "<p>These are the figures of <code>hybrid-blocks plan</code>, for memory that is full "
            "of decoding requests of one length.</p>"
        )
        notes = "".join(f"<p>note: {safe(note)}</p>" for note in picture.notes)
        warnings = "".join(f'<p class="warn">warning: {safe(it)}</p>' for it in picture.warnings)
        self._notes.text = notes + warnings
        held = {run.owner for side in picture.sides for at in side.at for run in at.runs}
        owners = {name: page.swatch(color) for name, color in page.OWNERS.items()}
        shown = {name: style for name, style in owners.items() if name in held}
        content = legend({**shown, **HATCHED})
        same = "" if not picture.is_same else f"<p>{_SAME}</p>"
        self._legend.text = f"<h2>The memory to scale, full of these requests</h2>{same}{content}"

    def _maps(self) -> LayoutDOM:
        sources, ranges, captions, plots = [], [], [], []
        for name in ("vllm map", "natural map"):
            source, x_range = _quads(name), Range1d(start=0, end=1)
            caption = Title(text="", text_font_size="13px", text_font_style="normal")
            plot = figure(
                sizing_mode="stretch_width",
                height=330,
                x_range=x_range,
                y_range=Range1d(start=0, end=14),
                tools="",
                toolbar_location=None,
                title=caption,
            )
            _draw(plot, source)
            plot.add_tools(_hover())
            plot.axis.visible = False
            plot.grid.visible = False
            plot.outline_line_color = "#c9ced6"
            plot.background_fill_color = "#e9ebef"
            sources.append(source)
            ranges.append(x_range)
            captions.append(caption)
            plots.append(plot)
        self._args |= {"maps": sources, "x_maps": ranges, "captions": captions}
        return row(*plots, **FLUID, stylesheets=[InlineStyleSheet(css=STACKED)])

    def _strip(self) -> LayoutDOM:
        x_range = Range1d(start=0, end=1)
        plot = figure(
            **FLUID,
            height=180,
            x_range=x_range,
            y_range=Range1d(start=0, end=2.1),
            tools="",
            toolbar_location=None,
            x_axis_label="MiB",
        )
        sources = [_quads("vllm request"), _quads("natural request")]
        for source in sources:
            _draw(plot, source)
        plot.add_tools(_hover())
        plot.yaxis.ticker = FixedTicker(ticks=[0.6, 1.6])
        plot.yaxis.major_label_overrides = {0.6: "natural", 1.6: "vLLM"}
        plot.grid.visible = False
        plot.outline_line_color = "#c9ced6"
        self._args |= {"requests": sources, "x_request": x_range}
        return plot

    def _curves(self) -> LayoutDOM:
        plot = figure(
            **FLUID,
            height=340,
            x_axis_type="log",
            y_axis_type="log",
            tools="",
            toolbar_location=None,
            x_axis_label="tokens of a request",
            y_axis_label="requests at once",
        )
        sources = [_curve(), _curve()]
        cap = ColumnDataSource({"length": [1, 2], "most": [1, 2]})
        plot.line("length", "most", source=cap, color=page.PADDING, legend_label="max_num_seqs")
        names = ("vLLM", "level natural")
        for source, color, name, width in zip(sources, LINES, names, (7, 3), strict=True):
            line = plot.line(
                "length", "running", source=source, color=color, line_width=width, legend_label=name
            )
            plot.line("length", "held", source=source, color=color, line_dash="dotted")
            plot.add_tools(
                HoverTool(
                    renderers=[line],
                    mode="vline",
                    tooltips=[(name, "@length{0,0} tokens: @shown"), ("", "@binds")],
                )
            )
        points = ColumnDataSource({"length": [], "running": []})
        plot.scatter("length", "running", source=points, size=9, color="#1b1f24")
        marker = Span(dimension="height", line_color="#1b1f24", line_width=1, line_dash="dashed")
        plot.add_layout(marker)
        plot.legend.location = "bottom_left"
        plot.xaxis.formatter = CustomJSTickFormatter(code=_COMMAS)
        plot.yaxis.formatter = CustomJSTickFormatter(code=_COMMAS)
        self._args |= {"curves": sources, "points": points, "marker": marker, "cap": cap}
        return plot


def encode(picture: PlanPicture) -> str:
    """Return a picture as the JSON that the script reads."""
    return msgspec.json.encode(picture).decode()


def _curve() -> ColumnDataSource:
    return ColumnDataSource(
        {"length": [1, 2], "running": [1, 2], "held": [1, 2], "shown": ["", ""], "binds": ["", ""]}
    )


def _hover() -> HoverTool:
    return HoverTool(tooltips=[("", "@owner"), ("", "@what")])


def _quads(name: str) -> ColumnDataSource:
    """Return an empty source of tiles; a script fills it."""
    columns = ("left", "right", "bottom", "top", "color", "kind", "owner", "what")
    return ColumnDataSource({column: [] for column in columns}, name=name)


def _draw(plot: Any, source: ColumnDataSource) -> None:
    """Draw the tiles of a source into a plot."""
    for kind, look in _HATCHES.items():
        view = CDSView(filter=GroupFilter(column_name="kind", group=kind))
        plot.quad(source=source, view=view, **_EDGES, **look)
