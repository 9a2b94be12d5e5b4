"""The subcommands, by name."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

FUNCTIONS = {
    "doctor": "doctor",
    "plan": "plan_command",
    "profile": "profile_command",
    "replay": "replay_command",
}
"""Each command's function in the module of its name."""


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
        module = import_module(f"hybrid_blocks.cli.{cmd_name}")
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name)(getattr(module, FUNCTIONS[cmd_name]))
        return typer.main.get_command(alone)
