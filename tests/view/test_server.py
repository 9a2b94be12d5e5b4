"""``hybrid-blocks view``: controls plan again, by the code that ``plan`` runs."""

import json
import socket
from typing import Any

import pytest
from bokeh.document import Document
from hybrid_blocks.cli import app
from hybrid_blocks.view import server
from hybrid_blocks.view.server import Controls
from typer.testing import CliRunner


@pytest.fixture
def page() -> Document:
    document = Document()
    Controls("Qwen3.5-27B", "24GiB").show(document)
    return document


def set_value(page: Document, name: str, value: object) -> None:
    control: Any = page.get_model_by_name(name)
    assert control is not None
    control.value = value


def shown(page: Document) -> dict[str, Any]:
    state: Any = page.get_model_by_name("state")
    picture: dict[str, Any] = json.loads(state.data["json"][0])
    return picture


def planned(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments), "--json", "-"])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def longest(picture: dict[str, Any]) -> list[float]:
    return [side["at"][-1]["running"] for side in picture["sides"]]


def test_a_page_begins_with_the_options_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(server, "serve", lambda *_, deployment: begun.append(deployment))
    model = ("Qwen3-Next-80B-A3B", "--memory", "40GiB", "--speculative", "mtp:2")
    options = (
        *("--tensor-parallel-size", "16", "--kv-cache-dtype", "fp8"),
        *("--max-num-seqs", "96", "--max-model-len", "32k"),
    )
    result = CliRunner().invoke(app, ["view", *model, *options])
    assert result.exit_code == 0, result.output
    (deployment,) = begun
    document = Document()
    Controls("Qwen3-Next-80B-A3B", "40GiB", deployment).show(document)
    report = planned(*model, *options)
    fields = {"drafts": 2, "tp": "16", "format": "fp8", "most": "96", "longest": "32768"}
    assert {name: value(document, name) for name in fields} == fields
    wanted = [report[side]["lengths"][0]["running"] for side in ("vllm", "natural")]
    assert longest(shown(document)) == wanted


def value(page: Document, name: str) -> object:
    control: Any = page.get_model_by_name(name)
    return control.value


def test_controls_plan_again_as_the_command_does(page: Document) -> None:
    set_value(page, "model", "Qwen3-Next-80B-A3B")
    set_value(page, "memory", "40GiB")
    set_value(page, "tp", "2")
    set_value(page, "format", "fp8")
    set_value(page, "most", "512")
    set_value(page, "longest", "32k")
    report = planned(
        *("Qwen3-Next-80B-A3B", "--memory", "40GiB", "--tp", 2),
        *("--kv-cache-dtype", "fp8", "--max-num-seqs", 512, "--max-model-len", "32k"),
    )
    picture = shown(page)
    assert picture["model"] == report["model"]
    assert picture["max_num_seqs"] == 512
    wanted = [report[side]["lengths"][0]["running"] for side in ("vllm", "natural")]
    assert longest(picture) == wanted


def test_the_length_stays_where_models_reach_different_lengths(page: Document) -> None:
    slider: Any = page.get_model_by_name("length")
    assert shown(page)["lengths"][slider.value] == 8192
    set_value(page, "model", "Gemma-3-27B")
    assert shown(page)["lengths"][slider.value] == 8192
    assert slider.end == len(shown(page)["lengths"]) - 1


def test_a_mistake_is_said_and_the_last_plan_stays(page: Document) -> None:
    before, error = shown(page), page.get_model_by_name("error")
    assert error is not None
    for name, wrong, told in (
        ("memory", "24", "has no unit"),
        ("model", "<b>none", "&lt;b&gt;none: neither a file"),
        ("longest", "32 thousand", "no number of tokens"),
    ):
        control: Any = page.get_model_by_name(name)
        right = control.value
        control.value = wrong
        assert told in error.text  # type: ignore[attr-defined]
        assert shown(page) == before
        control.value = right
        assert error.text == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing-like-it"], "neither a file, a directory nor a built-in model"),
        (["--memory", "24"], "has no unit"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["view", *arguments, "--port", "0"])
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["view", "--port", str(port)])
    assert result.exit_code == 2
    assert f"--port {port}: Address already in use" in result.stderr


def test_without_bokeh_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_blocks.cli.output.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["view"])
    assert result.exit_code == 2
    assert result.stderr == "error: view needs Bokeh: pip install 'hybrid-blocks[view]'\n"
