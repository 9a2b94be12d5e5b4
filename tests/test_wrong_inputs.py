"""Wrong inputs of every kind for every command: one line that says what was wrong, exit code 2.

The usual run tries each option with some wrong values and each reader with some wrong files; the
full one tries all values, and pairs of them.
"""

import gzip
import json
import os
from collections.abc import Iterator
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from command import run
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.cli import FUNCTIONS, app
from hybrid_blocks.tools.cli.output import LONGEST_ERROR, to_page, to_write
from hybrid_blocks.tools.trace import FORMATS

DIGITS = "9" * 5000
WRONG = {
    "integer": ["", "x", "-1", "1.5", "nan", "99999999999999999999", DIGITS, "0x10", "1e3"],
    "float": ["", "x", "nan", "inf", "-inf", "-1", "2", "1e999"],
    "path": ["", "/no/such/folder/f.json", "/", "/dev/null/f", "f" * 5000, "f\udcff.json"],
    "text": ["", " ", ",", "a\nb", "\x1b[31mred", "\udcff", DIGITS, f"{DIGITS}GiB", "nan", "a=b"],
}
WRONG["tuple"] = WRONG["path"]
FILES: dict[str, bytes] = {
    "empty": b"",
    "blank": b"\n \n",
    "zeros": b"\x00" * 64,
    "brace": b"{",
    "list": b"[]",
    "list of numbers": b"[1, 2]",
    "object": b"{}",
    "null": b"null",
    "deep list": b"[" * 50_000,
    "deep object": b'{"conversations": ' * 5_000,
    "not a number": b'{"layers": NaN}',
    "utf-16": '{"requests": 1}'.encode("utf-16"),
    "cut archive": gzip.compress(b'{"hash_ids": 1}\n' * 400)[:-20],
    "archive of nothing": gzip.compress(b""),
    "head of an archive": b"\x1f\x8b\x08",
    "a list cut off": b'[{"conversations": []}, {"conv',
    "a config of wrong types": json.dumps(
        {"model_type": "llama", "num_hidden_layers": "two", "hidden_size": [], "head_dim": None}
    ).encode(),
    "a config of huge numbers": json.dumps(
        {"model_type": "llama", "num_attention_heads": 1}
        | dict.fromkeys(("num_hidden_layers", "hidden_size"), 10**30)
    ).encode(),
    "a config that divides by zero": json.dumps(
        {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 0}
        | {"num_attention_heads": 0, "num_key_value_heads": 0}
    ).encode(),
    "huge times": b'{"timestamp": 1e400, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
}


@pytest.fixture(autouse=True)
def nothing_heavy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fail where vLLM, or a process for each package, would run: no input was refused."""

    def ran(*_: object, **__: object) -> None:
        raise InvalidArgumentError("it would run")

    for name in (
        *("profile.profile", "replay_run.compare", "replay_run.SharedCache"),
        *(
            "doctor_reach.need_vllm",
            "doctor._print_installation",
            "shadow.need_vllm",
            "top.read_engine",
        ),
    ):
        monkeypatch.setattr(f"hybrid_blocks.tools.cli.{name}", ran)
    monkeypatch.setattr("hybrid_blocks.tools.view.server.make_server", ran)
    monkeypatch.setattr("hybrid_blocks.tools.cli.profile.need_vllm", lambda: None)
    monkeypatch.chdir(tmp_path)


def check(*arguments: str) -> str:
    """Run a command; return its error, or "" where the input was not wrong after all."""
    ran, shown = run(*arguments), [argument[:60] for argument in arguments]
    assert ran.code in (0, 2), (shown, ran.output)
    if ran.code == 0:
        return ""
    lines = ran.error.splitlines()
    assert [line.startswith("error: ") for line in lines].count(True) == 1, (shown, lines)
    assert lines[-1].startswith("error: "), (shown, lines)
    assert len("error: a word") < len(lines[-1]) <= len("error: ") + LONGEST_ERROR, (shown, lines)
    assert lines[-1].isprintable(), (shown, lines)
    return lines[-1]


def base(command: str, folder: Path) -> list[str]:
    """A command that is right, to which something wrong is added."""
    trace = folder / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-01 10:00:00.0,1000,24\n")
    return {
        "doctor": ["--model", "Phi-4"],
        "plan": ["Granite-4.0-Micro", "--memory", "24GiB"],
        "profile": [],
        "replay": [str(trace), "--model", "Granite-4.0-Micro", "--memory", "1GiB"],
        "shadow": ["traffic.jsonl", "--model", "Phi-4", "--memory", "24GiB", "--once"],
        "top": ["localhost:8000", "--once"],
        "view": ["Granite-4.0-Micro", "--memory", "24GiB"],
    }[command]


def options(command: str) -> list[tuple[str, str, int]]:
    """The options of a command that take values: name, kind of value, and how many."""
    group: Any = typer.main.get_command(app)
    found = []
    for parameter in group.get_command(None, command).params:
        kind = parameter.type.name
        if parameter.param_type_name == "option" and not parameter.is_flag:
            kind = next((known for known in WRONG if kind.startswith(known)), "text")
            found.append((parameter.opts[0], kind, parameter.nargs))
    return found


def wrong(command: str) -> Iterator[list[str]]:
    for name, kind, count in options(command):
        for value in WRONG[kind]:
            yield [name, *[value] * count]


@pytest.mark.parametrize("command", FUNCTIONS)
def test_each_option_refuses_a_wrong_value_in_one_line(tmp_path: Path, command: str) -> None:
    """Every fifth of all, and another fifth of each option's values."""
    tried = list(wrong(command))[::5]
    refused = sum(bool(check(command, *base(command, tmp_path), *words)) for words in tried)
    assert refused > min(5, len(tried) // 2) or not tried


@pytest.mark.full
@pytest.mark.parametrize("command", FUNCTIONS)
def test_all_wrong_values_are_refused_in_one_line(tmp_path: Path, command: str) -> None:
    refused = [bool(check(command, *base(command, tmp_path), *words)) for words in wrong(command)]
    assert sum(refused) > len(refused) // 2 or not refused


@pytest.mark.full
@pytest.mark.parametrize("command", FUNCTIONS)
def test_pairs_of_wrong_values_are_refused_in_one_line(tmp_path: Path, command: str) -> None:
    every_third = [words for at, words in enumerate(wrong(command)) if at % 3 == 0]
    for first, second in combinations(every_third, 2):
        check(command, *base(command, tmp_path), *first, *second)


@pytest.mark.parametrize(
    "words",
    [
        ["bogus"],
        ["--bogus"],
        ["plan", "--bogus"],
        ["plan", "--tp"],
        ["plan", "a", "b", "--memory", "1GiB"],
        ["replay", "a", "b"],
        ["doctor", "Phi-4"],
        ["profile", "now"],
        ["top"],
        ["top", "", "--once"],
        ["top", "file:///etc/passwd", "--once"],
        ["replay", "--manager", "sglang"],
        ["replay", "--on-error", "weep"],
        ["profile", "--groups", "none"],
        ["plan", "x" * 300 + ".json", "--memory", "1GiB"],
        ["plan", "\x1b[31m\n\u2028", "--memory", "1GiB"],
    ],
    ids=lambda words: " ".join(words)[:30].encode("ascii", "replace").decode(),
)
def test_words_that_no_command_takes_are_refused_in_one_line(words: list[str]) -> None:
    assert check(*words)


def readers(file: str) -> Iterator[list[str]]:
    """Every command that reads a file."""
    yield ["plan", file, "--memory", "24GiB"]
    yield ["plan", "--layers", file, "--memory", "24GiB"]
    yield ["plan", "Granite-4.0-Micro", "--memory", "24GiB", "--trace", file]
    yield ["doctor", "--model", file]
    yield ["profile", "--trace", file]
    for name, on_error in product(("auto", *FORMATS), ("raise", "skip")):
        yield ["replay", file, "--format", name, "--on-error", on_error]


def files(folder: Path) -> Iterator[Path]:
    for number, content in enumerate(FILES.values()):
        path = folder / f"{number}.json"
        path.write_bytes(content)
        yield path


def test_wrong_files_are_refused_in_one_line(tmp_path: Path) -> None:
    """Each reader meets some files, and each file some readers."""
    for number, path in enumerate(files(tmp_path)):
        for at, words in enumerate(readers(str(path))):
            if (at + number) % 4 == 0:
                check(*words)


@pytest.mark.full
def test_all_wrong_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for path in files(tmp_path):
        for words in readers(str(path)):
            check(*words)


WRITES = {to_write, to_page}
MODELS = {("doctor", "model"), ("plan", "model"), ("replay", "model"), ("view", "model")}
"""Parameters that may also name a file."""
BESIDE: dict[tuple[str, str], list[str]] = {
    ("plan", "layers"): ["--memory", "24GiB"],
    ("plan", "model"): ["--memory", "24GiB"],
    ("replay", "trace"): ["--num-blocks", "unbounded"],
    ("shadow", "file"): ["--model", "Phi-4", "--memory", "24GiB"],
    ("view", "model"): ["--memory", "24GiB"],
}
"""Words of a right command beside some parameters, where those of `base` would refuse them."""


def reading() -> Iterator[tuple[str, str, list[str]]]:
    """Each parameter of a command that names files to read, with the words before the files."""
    for command, function in FUNCTIONS.items():
        written = getattr(import_module(f"hybrid_blocks.tools.cli.{command}"), function)
        group: Any = typer.main.get_command(app)
        parameters = {it.name: it for it in group.get_command(None, command).params}
        for name, hint in get_type_hints(written, include_extras=True).items():
            callback = getattr(hint, "__metadata__", [None])[0]
            is_path = "Path" in str(hint) and getattr(callback, "callback", None) not in WRITES
            if is_path or (command, name) in MODELS:
                parameter = parameters[name]
                is_option = parameter.param_type_name == "option"
                yield command, name, [parameter.opts[0]] if is_option else []


@pytest.mark.parametrize(("command", "name", "before"), list(reading()))
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "a loop", "none"])
def test_no_command_waits_for_a_file_that_is_none(
    tmp_path: Path, command: str, name: str, before: list[str], kind: str
) -> None:
    odd = {"a pipe": tmp_path / "pipe", "a device": Path("/dev/zero"), "a folder": tmp_path / "no"}
    odd |= {"a loop": tmp_path / "loop", "none": tmp_path / "none.json"}
    odd["a loop"].symlink_to(odd["a loop"])
    os.mkfifo(odd["a pipe"])
    odd["a folder"].mkdir()
    right = BESIDE.get((command, name), base(command, tmp_path))
    assert str(odd[kind]) in check(command, *right, *before, str(odd[kind]))


def test_the_parameters_that_name_files_are_found() -> None:
    found = {(command, name) for command, name, _ in reading()}
    assert found >= MODELS | {
        *(("plan", name) for name in ("layers", "trace", "log")),
        *(("replay", "trace"), ("profile", "trace")),
    }
