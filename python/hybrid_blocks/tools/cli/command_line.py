"""The command line as its user wrote it, for pages that say how they were made."""

import shlex
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand

import hybrid_blocks

if TYPE_CHECKING:
    from hybrid_blocks.tools.view.page import MadeBy

_KEY: Final = "hybrid_blocks.command_line"


class Written(TyperCommand):
    """A command that keeps its words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words before they become options."""
        ctx.meta[_KEY] = shlex.join(["hybrid-blocks", str(ctx.info_name), *args])
        return super().parse_args(ctx, args)


def append(context: typer.Context, words: str) -> None:
    """Append what was understood of a pasted command, whose other words may be keys."""
    context.meta[_KEY] = f"{context.meta[_KEY]} -- {words}"


def made_by(context: typer.Context) -> "MadeBy":
    """Return the version and the command line."""
    from hybrid_blocks.tools.view.page import MadeBy  # noqa: PLC0415 - optional, slow

    return MadeBy(hybrid_blocks.__version__, str(context.meta[_KEY]))
