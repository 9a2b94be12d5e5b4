"""The map of an arena on the page of a replay: who holds each slab."""

from typing import Any, Final

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    CustomJSHover,
    FixedTicker,
    HoverTool,
    LayoutDOM,
    LinearColorMapper,
    Range1d,
)
from bokeh.plotting import figure

from hybrid_blocks.view import colors
from hybrid_blocks.view.page import WIDTH, legend, safe
from hybrid_blocks.view.replay_picture import Arena, Run

ROWS: Final = 10
NO_TILE: Final = "#e9ebef"


def film_of(arena: Arena, name: str) -> dict[str, Any]:
    """Return what a script needs to show an arena at each time."""
    tiles = arena.codes.shape[1]
    columns = -(-tiles // ROWS)
    image = np.full((ROWS, columns), len(arena.owners), dtype=np.uint8)
    return {
        "frames": ColumnDataSource({"seconds": arena.seconds}, name=f"frames {name}"),
        "codes": ColumnDataSource({"codes": arena.codes.ravel()}, name=f"codes {name}"),
        "tiles": tiles,
        "owners": list(arena.owners),
        "colors": [_color(owner) for owner in arena.owners],
        "columns": columns,
        "rows": ROWS,
        "map": ColumnDataSource({"image": [image]}, name=name),
    }


def _color(owner: str) -> str:
    kind = owner.partition(" of running")[0].partition(",")[0]
    if owner == "checkpoint":
        return colors.pale(colors.OWNERS["states"])
    if kind not in colors.OWNERS:
        return colors.UNUSED
    color = colors.OWNERS[kind]
    return color if "running" in owner else colors.pale(color)


def map_legend(run: Run, film: dict[str, Any]) -> str:
    """Say which color each owner has."""
    marks = dict(zip(film["owners"], map(colors.swatch, film["colors"]), strict=True))
    assert run.arena is not None
    return (
        f"<h2>The arena of {safe(run.name)}: who holds each slab</h2>"
        f"{legend(marks)}<p>{safe(run.arena.tile)}. A slab without a running request keeps what "
        "its pool left, until another pool takes it.</p>"
    )


def draw_map(film: dict[str, Any]) -> LayoutDOM:
    """Draw a pixel for each tile, as an image is quick to draw; lines part the tiles."""
    columns = film["columns"]
    plot: Any = figure(
        width=WIDTH,
        height=210,
        x_range=Range1d(start=0, end=columns),
        y_range=Range1d(start=0, end=ROWS),
        tools="",
        toolbar_location=None,
        name=f"map {film['map'].name}",
    )
    palette = [*film["colors"], NO_TILE]
    plot.image(
        "image",
        source=film["map"],
        x=0,
        y=0,
        dw=columns,
        dh=ROWS,
        color_mapper=LinearColorMapper(palette=palette, low=0, high=len(palette) - 1),
    )
    owner = CustomJSHover(args={"owners": film["owners"]}, code="return owners[value] ?? ''")
    plot.add_tools(HoverTool(tooltips=[("", "@image{custom}")], formatters={"@image": owner}))
    plot.axis.visible = False
    for grid, count, width in ((plot.xgrid, columns, 1), (plot.ygrid, ROWS, 2)):
        grid.ticker = FixedTicker(ticks=list(range(count + 1)))
        grid.grid_line_color = NO_TILE
        grid.grid_line_width = width
        grid.level = "glyph"
    plot.background_fill_color = NO_TILE
    plot.outline_line_color = "#c9ced6"
    made: LayoutDOM = plot
    return made
