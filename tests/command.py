"""A command that runs in this process, and what it printed."""

import json
from typing import Any, NamedTuple

from hybrid_blocks.tools.cli import app
from typer.testing import CliRunner


class Ran(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    error: str
    output: str
    """Both of them, in their order."""


def run(*words: object, given: str | bytes = "") -> Ran:
    """Run a command on a wide terminal. It ends by itself, whatever it was given."""
    result = CliRunner().invoke(app, [*map(str, words)], input=given, env={"COLUMNS": "400"})
    assert isinstance(result.exception, SystemExit | None), result.exception
    return Ran(result.exit_code, result.stdout, result.stderr, result.output)


def answer(*words: object, given: str | bytes = "") -> str:
    """Return what a command prints that does its work."""
    ran = run(*words, given=given)
    assert ran.code == 0, ran.output
    return ran.out


def failure(*words: object) -> str:
    """Return all that a command prints that fails after it has begun."""
    ran = run(*words)
    assert ran.code == 2, ran.output
    return ran.output


def as_json(*words: object, given: str | bytes = "") -> Any:
    """Return the data that a command prints for ``--json -``."""
    return json.loads(answer(*words, "--json", "-", given=given))


def refusal(*words: object, given: str | bytes = "") -> str:
    """Return the one line of a command that refuses what it was given, and prints nothing else."""
    ran = run(*words, given=given)
    assert (ran.code, ran.out) == (2, ""), ran.output
    assert ran.error.startswith("error: ")
    assert ran.error.count("\n") == 1, ran.error
    return ran.error
