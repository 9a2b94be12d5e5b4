"""The words of a command line: as its user wrote them, and a command of vLLM's behind ``--``."""

import re
import shlex
from itertools import takewhile
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand

import hybrid_blocks
from hybrid_blocks.errors import InvalidArgumentError

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


_PASTED: Final = "hybrid_blocks.pasted"
_STARTS: Final = (("vllm", "serve"), ("docker", "run"), ("podman", "run"))
_WITHIN: Final = re.compile(r"\b(vllm\s+serve|(docker|podman|nerdctl)\s+run|api_server)\s")
_ASSIGNMENT: Final = re.compile(r"[A-Z_][A-Z_0-9]*=")


class Pasting(Written):
    """A command that keeps what stands behind ``--`` apart from its own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Cut off a pasted command; ``vllm serve`` needs no ``--`` before it."""
        place, width = _place(args)
        if place is None or not _is_command(args[place + width :]):
            ctx.allow_extra_args = True
            rest = super().parse_args(ctx, args)
            if ctx.args:
                # Words that were meant as a command may be keys.
                ctx.fail(f"too many words: {len(ctx.args)}; a command of vLLM's server follows --")
            return rest
        ctx.meta[_PASTED] = args[place + width :]
        return super().parse_args(ctx, args[:place])


def pasted(context: typer.Context) -> list[str] | None:
    """Return the words of the pasted command, None without one."""
    found: list[str] | None = context.meta.get(_PASTED)
    return found


def refuse_pasted(context: typer.Context, why: str) -> None:
    """Refuse a pasted command that would be ignored; ``why`` follows "a pasted command"."""
    if pasted(context) is not None:
        raise InvalidArgumentError(f"a pasted command {why}")


def _place(args: list[str]) -> tuple[int | None, int]:
    """Index at which the pasted command is cut off, and how many words stand before it."""
    if "--" in args:
        return args.index("--"), 1
    names = [PurePath(word).name for word in args]
    for index, pair in enumerate(zip(names, args[1:], strict=False)):
        if pair in _STARTS:
            assigned = takewhile(_ASSIGNMENT.match, reversed(args[:index]))
            return index - sum(1 for _ in assigned), 0
    whole = next((index for index, word in enumerate(args) if _WITHIN.search(word)), None)
    return whole, 0


def _is_command(words: list[str]) -> bool:
    """Return whether words are a command and not the name of a model alone."""
    return len(words) > 1 or any(word.startswith("-") or " " in word.strip() for word in words)
