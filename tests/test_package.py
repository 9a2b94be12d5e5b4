"""The package exports what it documents, with types, and says how it was built."""

import runpy
import sys

import hybrid_blocks
import pytest
from process import printed_by_python


def test_build_info_names_the_version_that_the_package_reports() -> None:
    assert hybrid_blocks.build_info()["version"] == hybrid_blocks.__version__


def test_the_package_runs_as_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hybrid_blocks", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("hybrid_blocks", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"hybrid-blocks {hybrid_blocks.__version__}\n"


WITHOUT_PAGES = """
import sys
from hybrid_blocks.tools.cli import app
from typer.testing import CliRunner

MODEL = ("--model", "Qwen3.5-27B")
for words, wanted in (
    (("plan", "Qwen3.5-27B", "--memory", "24GiB"), 0),
    (("replay", "--workload", "tools", "--limit", "2", *MODEL, "--memory", "12GiB"), 0),
    (("doctor",), 0),
    (("top", "localhost:0", "--once"), 2),
):
    assert CliRunner().invoke(app, words).exit_code == wanted, words
    drawn = {"bokeh", "jinja2", "matplotlib", "pandas", "PIL", "tornado"} & set(sys.modules)
    assert not drawn, (words, drawn)
"""


def test_commands_of_the_light_install_import_nothing_that_draws() -> None:
    printed_by_python("-c", WITHOUT_PAGES, timeout=300)


@pytest.mark.wheel
def test_the_wheel_is_a_release_build() -> None:
    assert hybrid_blocks.build_info()["profile"] == "release"
