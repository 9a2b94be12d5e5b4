"""What commands write beside their tables."""

from pathlib import Path
from typing import Final, NoReturn

import typer

from hybrid_blocks.errors import InvalidArgumentError

STDOUT: Final = Path("-")
"""The file of ``--json`` that is standard output; tables are not printed then."""


def to_write(param: typer.CallbackParam, path: Path | None) -> Path | None:
    """Refuse a file in a folder that is missing before anything is computed for it."""
    if path is not None and path != STDOUT and not path.parent.is_dir():
        fail(InvalidArgumentError(f"{param.opts[-1]} {path}: there is no folder {path.parent}"))
    return path


def write_json(path: Path, content: bytes) -> None:
    """Write what ``--json`` asks for, to a file or to `STDOUT`.

    Raises:
        InvalidArgumentError: the file cannot be written.

    """
    text = content.rstrip(b"\n")
    if path == STDOUT:
        typer.echo(text.decode())
        return
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise InvalidArgumentError(f"--json {path}: {error.strerror or error}") from None


def fail(error: Exception) -> NoReturn:
    """Say what was wrong, as it is, and exit with code 2."""
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(2) from None
