"""The map of an arena on the page of a replay: what each slab holds, and the last hit."""

from typing import Any, Final

import numpy as np
from bokeh.models import ColumnDataSource, CustomJS, CustomJSHover, HoverTool, LayoutDOM, Range1d
from bokeh.models.widgets import Slider
from bokeh.plotting import figure

from hybrid_blocks.tools.view import page
from hybrid_blocks.tools.view.page import legend, read, safe, text
from hybrid_blocks.tools.view.replay_picture import Arena, Run

PIXELS: Final = 1120
MOST_PIXELS: Final = 330
LARGEST_SIDE: Final = 56
"""How wide and how high a map is at most, and the side of a tile."""

GAP: Final = "#e9ebef"

_HOVER: Final = """
const {columns, count, cuts, owners, map, tiles} = film
const tile = Math.floor(special_vars.y) * columns + Math.floor(special_vars.x)
if (tile < 0 || tile >= count) return ''
const at = (map.first ?? 0) + tile, code = tiles.data.codes[at], blocks = cuts[(code - 1) >> 1]
if (code === 0 || blocks === 1) return owners[code]
const live = tiles.data.live[at], used = Math.max(tiles.data.used[at] - live, 0)
const owner = owners[2 * ((code - 1) >> 1) + 1] || owners[code]
return `${owner}: ${live} of ${blocks} blocks, kept or free: ${used}`
"""
"""Says what the tile under the pointer holds."""


class ArenaMap:
    """The parts of a page that show one arena, and the script that shows it at a time.

    The browser paints an image of it, as one is quick to draw. A tile is a square of ``side``
    pixels, and each of its blocks a rectangle in it.
    """

    def __init__(self, run: Run, arena: Arena, slider: Slider, moments: list[float], name: str):
        side = _side(arena.count)
        columns = PIXELS // side
        rows = -(-arena.count // columns)
        shown = ColumnDataSource({"image": [np.zeros((1, 1), dtype=np.uint32)]}, name=name)
        owners = [_color(owner) for owner in arena.owners]
        told = text(name=f"hit {name}")
        film = {
            "frames": ColumnDataSource({"seconds": arena.seconds}, name=f"frames {name}"),
            "tiles": ColumnDataSource(arena.tiles, name=f"codes {name}"),
            "hits": ColumnDataSource(arena.hits.columns, name=f"hits {name}"),
            "parts": ColumnDataSource(arena.hits.parts, name=f"parts {name}"),
            "count": arena.count,
            "cuts": list(arena.cuts),
            "owners": list(arena.owners),
            "side": side,
            "columns": columns,
            "rows": rows,
            "map": shown,
            "palette": [*owners, GAP, page.FOUND, page.AGAIN, page.INK],
        }
        self.script = CustomJS(
            args={"slider": slider, "moments": moments, "film": film, "told": told},
            code=read("last.js") + read("arena.js"),
        )
        self.film = film
        named = zip(arena.owners, map(page.swatch, owners), strict=True)
        marks = {owner: swatch for owner, swatch in named if owner}
        marks["found by the newest request"] = page.swatch(page.FOUND)
        if any("states" in owner for owner in arena.owners):
            marks["the state where its hit ends"] = (
                f"{page.swatch(page.FOUND)};outline:2px solid {page.INK}"
            )
        marks["computed again"] = page.swatch(page.AGAIN)
        self.parts: list[LayoutDOM] = [
            text(
                f"<h2>The memory of {safe(run.name)}: what each slab holds</h2>{legend(marks)}"
                f"<p>{safe(arena.tile)} A slab without a running request keeps what its pool "
                "left, until another pool takes it.</p>"
            ),
            told,
            _draw(film),
        ]


def _side(tiles: int) -> int:
    """Return the side of square tiles: the largest at which all tiles fit."""
    for side in range(LARGEST_SIDE, 1, -1):
        if -(-tiles // (PIXELS // side)) * side <= MOST_PIXELS:
            return side
    return 1


def _color(owner: str) -> str:
    kind = owner.partition(" of running")[0].partition(",")[0]
    if owner == "checkpoint":
        return page.pale(page.OWNERS["states"])
    if kind not in page.OWNERS:
        return page.UNUSED
    color = page.OWNERS[kind]
    return color if "running" in owner else page.pale(color)


def _draw(film: dict[str, Any]) -> LayoutDOM:
    columns, rows, side = film["columns"], film["rows"], film["side"]
    plot: Any = figure(
        frame_width=columns * side,
        frame_height=rows * side,
        x_range=Range1d(start=0, end=columns),
        y_range=Range1d(start=rows, end=0),
        tools="",
        toolbar_location=None,
        min_border=0,
        frame_align=False,
        name=f"map {film['map'].name}",
    )
    plot.image_rgba("image", source=film["map"], x=0, y=0, dw=columns, dh=rows)
    words = CustomJSHover(args={"film": film}, code=_HOVER)
    plot.add_tools(HoverTool(tooltips=[("", "$x{custom}")], formatters={"$x": words}))
    plot.axis.visible = False
    plot.grid.visible = False
    plot.background_fill_color = GAP
    plot.outline_line_color = None
    made: LayoutDOM = plot
    return made
