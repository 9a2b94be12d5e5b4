"""The command line as its user wrote it, for pages that say how they were made."""

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand

import hybrid_blocks

if TYPE_CHECKING:
    from hybrid_blocks.view.page import MadeBy

_KEY: Final = "hybrid_blocks.command_line"
_SECRET: Final = re.compile(
    r"([\w-]*(?:api[-_]?key|access[-_]?key|token|secret|password))(=|\s+)\S+", re.IGNORECASE
)


class Written(TyperCommand):
    """A command that keeps its words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words before they become options."""
        keep(ctx, args)
        return super().parse_args(ctx, args)


def keep(ctx: Any, args: list[str]) -> None:
    """Keep the words of a command."""
    ctx.meta[_KEY] = shlex.join(["hybrid-blocks", str(ctx.info_name), *args])


def made_by(context: typer.Context) -> "MadeBy":
    """Return the version and the command line; of a key or a token only the name."""
    from hybrid_blocks.view.page import MadeBy  # noqa: PLC0415 - optional, slow

    command = _SECRET.sub(r"\1\2***", str(context.meta[_KEY]))
    return MadeBy(hybrid_blocks.__version__, command)
