"""Tiles of memory: solid where requests read them, hatched where bytes are lost."""

from typing import Any, Final

from bokeh.models import CDSView, ColumnDataSource, GroupFilter

from hybrid_blocks.view import colors

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
        "fill_color": colors.ROUNDED,
        "hatch_pattern": "dot",
        "hatch_color": colors.ROUNDING,
        "hatch_scale": 6,
    },
    "padding": {
        "fill_color": colors.PADDED,
        "hatch_pattern": "right_diagonal_line",
        "hatch_color": colors.PADDING,
        "hatch_scale": 6,
        "hatch_weight": 1,
    },
}
"""How quads of each kind look. One hatch for all of a kind: one for each quad is slow to draw."""


def quads(name: str) -> ColumnDataSource:
    """Return an empty source of tiles; a script fills it."""
    columns = ("left", "right", "bottom", "top", "color", "kind", "owner", "what")
    return ColumnDataSource({column: [] for column in columns}, name=name)


def draw(plot: Any, source: ColumnDataSource) -> None:
    """Draw the tiles of a source into a plot."""
    for kind, look in _HATCHES.items():
        view = CDSView(filter=GroupFilter(column_name="kind", group=kind))
        plot.quad(source=source, view=view, **_EDGES, **look)
