"""``hybrid-blocks completion``: a script with which a shell completes commands and options."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from hybrid_blocks.cli.commands import FUNCTIONS
from hybrid_blocks.model.table import entries

_HEAD = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}
_SCRIPT = """\
{head}_hybrid_blocks() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    case "${{COMP_WORDS[1]}} $before" in
{values}
        *) case "${{COMP_WORDS[1]}}" in
{options}
        esac ;;
    esac
    [ "$COMP_CWORD" -eq 1 ] && words="{commands} --help --version"
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    case "$current" in -*) ;; *) COMPREPLY+=($(compgen -f -- "$current")) ;; esac
}}
complete -o filenames -F _hybrid_blocks hybrid-blocks
"""
_TAKE_MODELS = ("plan", "view")
"""Commands whose first word is a model."""


def completion_command(
    context: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh"], typer.Argument(help="The shell that reads the script.")
    ],
) -> None:
    """Print a script for a shell: source <(hybrid-blocks completion bash)."""
    group: Any = context.find_root().command
    commands = {name: group.get_command(context, name) for name in FUNCTIONS}
    script = _SCRIPT.format(
        head=_HEAD[shell],
        values="\n".join(_values(commands)),
        options="\n".join(_options(commands)),
        commands=" ".join(commands),
    )
    typer.echo(script, nl=False)


def _values(commands: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each option whose values are known."""
    for name, command in commands.items():
        for parameter in command.params:
            if parameter.param_type_name != "option":
                continue
            values = [str(it) for it in getattr(parameter.type, "choices", None) or ()]
            if parameter.name == "model":
                values = list(entries())
            if values:
                words = "|".join(f'"{name} {option}"' for option in parameter.opts)
                yield f'        {words}) words="{" ".join(values)}" ;;'


def _options(commands: dict[str, Any]) -> Iterator[str]:
    for name, command in commands.items():
        words = [
            option
            for parameter in command.params
            if parameter.param_type_name == "option"
            for option in (*parameter.opts, *parameter.secondary_opts)
        ]
        if name == "completion":
            words += _HEAD
        if name in _TAKE_MODELS:
            words += entries()
        yield f'            {name}) words="{" ".join(words)}" ;;'
