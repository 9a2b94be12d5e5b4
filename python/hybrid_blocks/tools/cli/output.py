"""The output of commands next to their tables."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.terminal import plain

STDOUT: Final = Path("-")
"""The file of ``--json`` that is standard output; tables are not printed then."""


class Files(NamedTuple):
    """The files that a command writes, and the command that a page names."""

    json: Path | None
    html: Path | None
    context: typer.Context


LONGEST_ERROR: Final = 1000
"""Characters of an error or a warning, whatever the values that it shows."""


def to_write(param: typer.CallbackParam, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before anything is computed for it."""
    if path is not None and path != STDOUT:
        _check_file(f"{param.opts[-1]} {path}", path)
    return path


def to_page(param: typer.CallbackParam, path: Path | None) -> Path | None:
    """Refuse a page that cannot be written before anything is computed for it."""
    if path is None:
        return None
    _check_file(f"{param.opts[-1]} {path}", path)
    need_bokeh(param.opts[-1])
    return path


def need_bokeh(what: str) -> None:
    """Check that pages can be drawn; ``what`` needs them."""
    if find_spec("bokeh") is None:
        raise InvalidArgumentError(f"{what} needs Bokeh: pip install '.[view]' in the checkout")


def _check_file(what: str, path: Path) -> None:
    try:
        if not path.parent.is_dir():
            raise InvalidArgumentError(f"{what}: there is no folder {path.parent}")
        if path.is_dir():
            raise InvalidArgumentError(f"{what}: a folder; name a file in it")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InvalidArgumentError(f"{what}: it cannot be written")
    except (OSError, ValueError) as error:
        if isinstance(error, HybridBlocksError):
            raise
        raise InvalidArgumentError(f"{what}: {message_of(error)}") from None


def refuse_same_file(**paths: Path | None) -> None:
    """Refuse two options that name one file, by their names with dashes for underscores."""
    seen: dict[str, str] = {}
    for name, path in paths.items():
        if path is None or path == STDOUT:
            continue
        option = f"--{name.replace('_', '-')}"
        # Path.resolve raises RuntimeError for a loop of links.
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise InvalidArgumentError(f"{other} and {option} name the same file, {path}")


def write_json(path: Path, content: bytes) -> None:
    """Write what ``--json`` asks for, to a file or to `STDOUT`."""
    text = content.rstrip(b"\n")
    if path == STDOUT:
        typer.echo("".join(map(_in_json, text.decode())))
        return
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise InvalidArgumentError(f"--json {path}: {error.strerror or error}") from None


def _in_json(char: str) -> str:
    """Escape a character that a terminal would act on; such a one stands in strings alone."""
    return char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1]


def message_of(error: BaseException) -> str:
    """Say what was wrong, for a person."""
    match error:
        case HybridBlocksError():
            return str(error)
        case OSError():
            name = "" if error.filename is None else f"{_text(error.filename)}: "
            return f"{name}{error.strerror or error}"
        case MemoryError():
            return "this machine has not enough memory for that; ask for less"
        case RecursionError():
            return "an input is nested too deeply to be read"
        case UnicodeEncodeError():
            return f"{error.object!a}: a name that is not valid UTF-8"
    formatted: Any = getattr(error, "format_message", None)
    return str(formatted() if formatted else error)


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else os.fsdecode(name)


def print_error(error: BaseException) -> None:
    """Say what was wrong in one line; a value of any length leaves room for the reason."""
    typer.echo(f"error: {_in_short(plain(message_of(error)))}", err=True)


def _in_short(text: str) -> str:
    return text if len(text) <= LONGEST_ERROR else f"{text[:500]} … {text[-400:]}"


def warn(text: str) -> None:
    """Say what a user may not have meant, beside what a command prints."""
    typer.echo(f"warning: {_in_short(plain(text))}", err=True)
