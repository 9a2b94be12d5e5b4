"""The ``hybrid-blocks`` command: one module a subcommand, imported when a user calls it."""

from typing import Annotated

import typer

import hybrid_blocks
from hybrid_blocks.tools.cli.commands import Commands

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"hybrid-blocks {hybrid_blocks.__version__}")
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """KV-cache block manager for hybrid LLMs."""
