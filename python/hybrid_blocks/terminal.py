"""Where commands print: text of others without escape sequences, consoles, tables of one look."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

UNBOUNDED_WIDTH: Final = 100_000
"""Columns of what is no terminal: nothing that a file or another program reads is cut."""

_GAP: Final = 1
_VERDICT: Final = "verdict:"


def plain(text: str) -> str:
    """Return text of others in one line, with escapes for characters that a terminal acts on."""
    return _escaped(" ".join(line.strip() for line in text.splitlines() if line.strip()))


def _escaped(text: str) -> str:
    return "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text
    )


class _PlainConsole(Console):
    """Escapes all text that it prints; only Rich's own codes reach the terminal."""

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **options):
            is_plain = segment.control or segment.text.isprintable()
            yield segment if is_plain else Segment(_escaped(segment.text), segment.style)


class _PlainTable(Table):
    """Escapes cells and headers before their widths are measured."""

    def add_column(self, header: Any = "", *args: Any, **options: Any) -> None:
        super().add_column(_cell(header), *args, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*map(_cell, cells), **options)


def _cell(content: Any) -> Any:
    return _escaped(content) if isinstance(content, str) else content


def make_console(*, stderr: bool = False) -> Console:
    """Make a console that prints text as it is: no markup, no emoji, no colours of its own.

    Characters that a terminal would act on are printed as escapes.
    """
    console = _PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = UNBOUNDED_WIDTH
    return console


def print_verdict(console: Console, lines: Iterable[str]) -> None:
    """Print the answer that stands before all tables."""
    for index, line in enumerate(lines):
        head = " " * len(_VERDICT) if index else _VERDICT
        console.print(Text.assemble((head, "bold green"), f" {line}"), soft_wrap=True)


def grid(title: str, *columns: str) -> Table:
    """Table that leaves the width to the figures: names on the left, figures on the right."""
    table = _PlainTable(
        title=title,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, _GAP),
        title_justify="left",
        caption_justify="left",
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a `grid`; where the terminal is narrower, headers are wrapped first, then cells.

    A number is folded only where not even the longest words of all cells fit side by side.
    """
    # The rule under the header takes one column between two, the padding another.
    room = console.width - (len(table.columns) - 1) * (_GAP + 1)
    headers = [str(column.header) for column in table.columns]
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    header_words = [_longest(header.split()) for header in headers]
    whole_cells = [_longest(column) for column in cells]
    cell_words = [_longest(word for cell in column for word in cell.split()) for column in cells]
    widths = _each_larger([_longest([header]) for header in headers], whole_cells)
    if sum(widths) > room >= sum(cell_words):
        for floor in (
            _each_larger(header_words, whole_cells),
            _each_larger(header_words, cell_words),
            cell_words,
        ):
            _narrow(widths, floor, room)
        for column, width in zip(table.columns, widths, strict=True):
            column.width = max(width, 1)
    console.print(table)


def _narrow(widths: list[int], floor: Sequence[int], room: int) -> None:
    """Take from the widest columns until all fit into ``room``, or none is above its floor."""
    while sum(widths) > room:
        above = [index for index, width in enumerate(widths) if width > floor[index]]
        if not above:
            return
        widths[max(above, key=lambda index: widths[index])] -= 1


def _each_larger(first: Iterable[int], second: Iterable[int]) -> list[int]:
    return [max(pair) for pair in zip(first, second, strict=True)]


def _longest(texts: Iterable[str]) -> int:
    return max((cell_len(text) for text in texts), default=0)
