"""The one look of all tables."""

from rich import box
from rich.table import Table


def grid(title: str, *columns: str) -> Table:
    """Table that leaves the width to the figures: names on the left, figures on the right."""
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, 1),
        title_justify="left",
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table
