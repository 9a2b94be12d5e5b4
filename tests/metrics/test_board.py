"""The board in `dashboards/` is the generated one, and asks for figures that exist."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from board import FILE, OF_VLLM, board
from grafana import VARIABLES, expressions
from hybrid_blocks.metrics import ENGINE, OFFLOAD, SHADOW
from hybrid_blocks.vllm.metrics import FOLDER_VARIABLE
from test_in_prometheus import Engine, Others

BOARD = board()
FIGURES = {figure.name: figure for figure in (*ENGINE, *OFFLOAD, *SHADOW)}


def metrics(expression: str) -> list[str]:
    return re.findall(r"((?:vllm:|hybrid_blocks_)\w+)\{", expression)


def test_the_file_is_the_generated_board() -> None:
    assert json.loads(FILE.read_text()) == BOARD, "run `make dashboards`"


@pytest.mark.parametrize("expression", list(expressions(BOARD)))
def test_a_query_asks_for_figures_that_exist_with_labels_that_they_have(expression: str) -> None:
    names = metrics(expression)
    assert names
    assert set(names) <= {*FIGURES, *OF_VLLM}
    known = {*VARIABLES, *(label for name in names for label in labels_of(name))}
    matched = re.findall(r'(\w+)=~?"', expression)
    grouped = [it for group in re.findall(r" by \((.*?)\)", expression) for it in group.split(", ")]
    assert {*matched, *grouped} <= known
    assert all(expression.count(f'{name}=~"${name}"') == len(names) for name in VARIABLES)


def labels_of(name: str) -> tuple[str, ...]:
    return FIGURES[name].labels if name in FIGURES else ()


@pytest.mark.parametrize("expression", list(expressions(BOARD)))
def test_a_query_takes_rates_of_counters_alone(expression: str) -> None:
    for name in metrics(expression):
        assert (f"rate({name}{{" in expression) == name.endswith("_total")


def test_every_figure_is_on_the_board() -> None:
    shown = {name for expression in expressions(BOARD) for name in metrics(expression)}
    assert FIGURES.keys() <= shown


def test_the_engine_that_prometheus_scrapes_has_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    shown = [*Engine(tmp_path).collect(), *Others().collect()]
    samples = {sample.name for family in shown for sample in family.samples}
    assert {*FIGURES, *OF_VLLM} <= samples


def test_variables_and_tag_are_those_of_vllms_boards() -> None:
    names = [variable["name"] for variable in BOARD["templating"]["list"]]
    assert names == ["datasource", "job", "model_name", "instance", "engine", "filters"]
    assert BOARD["tags"] == ["vllm"]


def test_no_panel_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    numbers = set()
    for panel in BOARD["panels"]:
        for shown in (panel, *panel.get("panels", ())):
            numbers.add(shown["id"])
            place = shown["gridPos"]
            columns = range(place["x"], place["x"] + place["w"])
            cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
            assert place["x"] + place["w"] <= 24
            assert not cells & taken, shown["title"]
            taken |= cells
    assert numbers == set(range(1, len(numbers) + 1))


@pytest.mark.vllm
@pytest.mark.parametrize("name", OF_VLLM)
def test_vllm_has_the_figures_that_the_board_borrows(name: str) -> None:
    vllm = find_spec("vllm")
    assert vllm
    assert vllm.origin
    source = Path(vllm.origin).parent / "v1/metrics/loggers.py"
    assert f'"{name.removesuffix("_total")}"' in source.read_text()
