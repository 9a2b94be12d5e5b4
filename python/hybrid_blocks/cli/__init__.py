"""The ``hybrid-blocks`` command: one module a subcommand, imported when it is asked for."""

import typer

from hybrid_blocks.cli.commands import Commands

app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


@app.callback()
def main() -> None:
    """KV-cache block manager for hybrid LLMs."""
