"""Names of files, models and labels: no command lets their escape sequences reach the terminal."""

import io
import json
import os
from pathlib import Path

import pytest
from command import run
from hybrid_blocks.terminal import grid, make_console, plain, print_table, print_verdict

NAME = "x\x1b]0;title\x07\x1b[2J\x9b31m\r\u202e[red]y"
"""Sets a title, clears the screen, colors by a C1 character, and turns the direction of text."""

SHOWN = r"\x1b[2J\x9b31m"


def printed(*arguments: object) -> str:
    """All that a command prints; none of it is a character that a terminal acts on."""
    output = run(*arguments).output
    assert output
    assert all(char.isprintable() or char == "\n" for char in output), ascii(output)
    return output


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / NAME
    folder.mkdir()
    fields = {"architectures": [NAME], "model_type": "llama", "hidden_size": 64}
    fields |= {"num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / f"{NAME}.csv"
    rows = [f"2024-05-01 10:00:{second:02}.0,1000,24\n" for second in range(20)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return path


def test_a_plan_shows_the_name_of_its_model_as_escapes(config: Path) -> None:
    assert SHOWN in printed("plan", config, "--memory", "64MiB")


def test_json_on_standard_output_means_the_same_name(config: Path) -> None:
    content = json.loads(printed("plan", config, "--memory", "64MiB", "--json", "-"))
    assert content["model"] == str(config)


def test_a_replay_keeps_the_name_of_its_trace_off_the_terminal(trace: Path) -> None:
    options = ("--model", "Granite-4.0-Micro", "--memory", "1GiB")
    printed("replay", trace, *options)
    assert SHOWN.replace("\\x", "\\u00") in printed("replay", trace, *options, "--json", "-")


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", NAME, "--memory", "1GiB"),
        ("plan", "Phi-4", "--memory", NAME),
        ("plan", "Phi-4", "--memory", "1GiB", f"--{NAME}"),
        ("plan", "--log", NAME),
        ("plan", "--memory", "1GiB", "--", f"vllm serve '{NAME}'"),
        ("replay", NAME),
        ("profile", "--levels", NAME),
        ("doctor", "--model", NAME),
        ("top", NAME, "--once"),
        ("view", NAME),
        ("view", "--memory", NAME),
        (NAME,),
    ],
    ids=lambda arguments: " ".join(arguments[:2]).encode("ascii", "replace").decode()[:16],
)
def test_an_error_shows_what_it_names_as_escapes(arguments: tuple[str, ...]) -> None:
    assert printed(*arguments).startswith("error: ")


def test_a_name_of_bytes_that_are_no_text_is_shown(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b"))
    folder.mkdir()
    assert r"\udcff\x1b" in printed("plan", folder, "--memory", "1GiB")


def test_a_log_shows_the_name_of_its_model_as_escapes(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "INFO non-default args: {'model': 'a\x1b[31m\x9b', 'max_model_len': 512}\n"
        "INFO Available KV cache memory: 1.0 GiB\n"
        "INFO GPU KV cache size: 1,000 tokens\n"
    )
    printed("plan", "--log", log)


def test_what_a_console_prints_is_escaped_wherever_it_stands() -> None:
    console = make_console()
    console.file = out = io.StringIO()
    table = grid(NAME, "name", NAME)
    table.add_row(NAME, "1")
    print_table(console, table)
    print_verdict(console, [NAME])
    console.print(NAME, soft_wrap=True)
    assert out.getvalue().count(SHOWN) == 5
    assert all(char.isprintable() or char == "\n" for char in out.getvalue())


def test_text_of_others_is_one_line() -> None:
    assert plain("a\nb\x85c\u2028d\re") == "a b c d e"
    assert plain("caf\u00e9 \u65e5\u672c") == "caf\u00e9 \u65e5\u672c"
    assert plain("a\u200bb\u2066c\x00") == r"a\u200bb\u2066c\x00"
