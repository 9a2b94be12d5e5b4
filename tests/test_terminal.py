"""Tables at every width: what does not fit is wrapped, never cut."""

import io
import re

import pytest
from hybrid_blocks.terminal import grid, make_console, print_table
from rich.console import Console
from rich.table import Table

NUMBERS = ("1,048,576", "36.70 MiB", "0.13%", "393,088 tokens, 5.48x")


def table() -> Table:
    made = grid("groups", "kind of group", "token slots", "block", "share", "vLLM logs")
    made.add_row("state x 4", *NUMBERS)
    made.add_row("full", "1", "2", "3", "4")
    return made


def printed(width: int) -> list[str]:
    out = io.StringIO()
    print_table(Console(file=out, width=width), table())
    return out.getvalue().splitlines()


def words_of(lines: list[str]) -> set[str]:
    return {word for line in lines for word in line.split()}


@pytest.mark.parametrize("width", [45, 50, 60, 70, 80, 200])
def test_no_word_of_a_cell_is_broken_where_all_fit_side_by_side(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    for number in (*NUMBERS, "state x 4"):
        assert set(number.split()) <= words_of(lines)


def test_headers_are_wrapped_before_cells() -> None:
    wide = max(map(len, printed(200)))
    lines = printed(wide - 2)
    assert any(line.startswith("state x 4") and line.endswith(NUMBERS[-1]) for line in lines)
    assert not any("token slots" in line and "kind of group" in line for line in lines)


@pytest.mark.parametrize("width", [20, 30])
def test_where_not_even_words_fit_they_are_folded_and_nothing_is_lost(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    digits = re.sub(r"\D", "", "".join(lines))
    assert sorted(digits) == sorted(re.sub(r"\D", "", "".join(NUMBERS)) + "41234")


def test_what_is_no_terminal_has_room_for_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(make_console(), table())
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("state x 4") and line.endswith(NUMBERS[-1]) for line in lines)


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print("[bold]:x:[/bold] 12")
    assert capsys.readouterr().out == "[bold]:x:[/bold] 12\n"
