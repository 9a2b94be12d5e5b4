"""The ``hybrid-blocks`` command: one module a subcommand, imported when a user calls it."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import hybrid_blocks
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.tools.cli.output import print_error
from hybrid_blocks.tools.cli.words import Pasting, Written

FUNCTIONS = {
    "doctor": "doctor",
    "plan": "plan_command",
    "profile": "profile_command",
    "replay": "replay_command",
    "shadow": "shadow_command",
    "top": "top_command",
    "view": "view_command",
}
"""Each command's function in the module of its name."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

PASTED = ("doctor", "plan")
"""Commands that take one of vLLM's behind ``--``."""


class Commands(TyperGroup):
    """Imports a command's module when it is looked up.

    ``plan`` answers at once only because it does not wait for numpy, which the others need.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(FUNCTIONS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return the command of a name, or ``None`` if there is none."""
        if cmd_name not in FUNCTIONS:
            return None
        module = import_module(f"hybrid_blocks.tools.cli.{cmd_name}")
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        kept = Pasting if cmd_name in PASTED else Written
        alone.command(cmd_name, cls=kept)(getattr(module, FUNCTIONS[cmd_name]))
        return typer.main.get_command(alone)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command; a mistake of its user ends in one line and exit code 2."""
        is_alone = kwargs.pop("standalone_mode", True)
        kwargs["standalone_mode"] = False
        if not is_alone:
            return super().main(*args, **kwargs)
        try:
            code = super().main(*args, **kwargs)
        except (HybridBlocksError, OSError, MemoryError, RecursionError, UnicodeError) as error:
            print_error(error)
            code = 2
        except Exception as error:
            # Typer brings classes of its own for a wrong option, whose module differs by release.
            if not hasattr(error, "format_message"):
                raise
            code = _print_usage_error(error)
        if code == INTERRUPTED:
            typer.echo("interrupted", err=True)
        sys.exit(code or 0)


def _print_usage_error(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        print_error(error)
    return int(error.exit_code)


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
