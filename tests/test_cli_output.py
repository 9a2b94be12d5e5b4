"""Files, errors and ignored options, which all commands treat alike."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import hybrid_blocks
import pytest
import typer
from command import answer, refusal
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.cli import replay
from hybrid_blocks.tools.cli.options import Given
from hybrid_blocks.tools.cli.output import STDOUT, print_error, write_json
from hybrid_blocks.tools.doctor import environment
from typer.testing import CliRunner

MOST_LINES = 50
CLI = Path(hybrid_blocks.__file__).parent / "tools/cli"


@pytest.mark.parametrize("file", sorted(CLI.glob("*.py")), ids=lambda file: file.stem)
def test_a_command_is_cut_into_functions_that_parse_refuse_or_do(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1 if len(node.body) > 1 and ast.get_docstring(node) else 0]
            lines = (node.end_lineno or 0) - first.lineno + 1
            assert lines <= MOST_LINES, f"{node.name} has {lines} lines"


def test_a_dash_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(STDOUT, b"{}\n")
    assert capsys.readouterr().out == "{}\n"
    assert not list(tmp_path.iterdir())
    write_json(tmp_path / "figures.json", b"{}")
    assert (tmp_path / "figures.json").read_bytes() == b"{}\n"
    with pytest.raises(InvalidArgumentError, match=r"--json .*: Is a directory"):
        write_json(tmp_path, b"{}")


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "Granite-4.0-Micro", "--memory", "24GiB"),
        ("replay", "--workload", "tools", "--limit", "5", "--memory", "4GiB"),
        ("replay", "--workload", "tools", "--limit", "5", "--share", "90%,unbounded"),
    ],
    ids=lambda command: " ".join(command[::2]),
)
def test_files_are_written_without_a_reader(tmp_path: Path, command: tuple[str, ...]) -> None:
    files = {"--json": "figures.json"}
    if "--share" not in command:
        files["--html"] = "page.html"
    options = [word for option, name in files.items() for word in (option, tmp_path / name)]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as closed:
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "hybrid_blocks", *command, *options],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
    assert "Traceback" not in ran.stderr
    starts = {name: (tmp_path / name).read_text().lstrip()[:5] for name in files.values()}
    assert starts.get("page.html", "<!DOC") == "<!DOC"
    assert starts["figures.json"][0] in "{["


def test_the_version_is_that_of_the_package() -> None:
    assert answer("--version") == f"hybrid-blocks {hybrid_blocks.__version__}\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [("plan", "--json"), ("plan", "--html"), ("replay", "--json"), ("profile", "--json")],
)
def test_a_file_in_a_missing_folder_is_refused(tmp_path: Path, command: str, option: str) -> None:
    path = tmp_path / "none" / "file"
    assert f"{option} {path}: there is no folder" in refusal(command, option, path)


def test_an_error_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ValueError("no trace [red]:x:[/red]"))
    assert capsys.readouterr().err == "error: no trace [red]:x:[/red]\n"


def test_options_count_as_given_only_on_the_command_line() -> None:
    command = typer.Typer()

    @command.command()
    def work(
        context: typer.Context, name: str = "a", in_depth: int = 3, *, loud: bool = False
    ) -> None:
        given = Given(context)
        typer.echo(f"{loud} {name} {in_depth}: {given.names('loud', 'name', 'in_depth')}")
        try:
            given.refuse(*given.all_but("name"), why="beside nothing")
        except InvalidArgumentError as error:
            print_error(error)
            raise typer.Exit(2) from None

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(command, list(arguments))
        return result.exit_code, result.output

    assert run() == (0, "False a 3: \n")
    assert run("--name", "b") == (0, "False b 3: --name\n")
    told = "True a 3: --loud, --in-depth\nerror: --in-depth, --loud beside nothing\n"
    assert run("--in-depth", "3", "--loud") == (2, told)


@pytest.mark.parametrize(
    "command",
    [
        ["profile"],
        ["doctor", "--model", "Phi-4"],
        ["replay", "--manager", "rust", "--manager", "vllm"],
    ],
)
def test_commands_say_what_to_install(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    monkeypatch.setattr(replay, "generate_requests", lambda *_: pytest.fail("it began to work"))
    assert "error: vLLM is not installed; pip install vllm" in refusal(*command)
