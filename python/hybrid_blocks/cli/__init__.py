"""The ``hybrid-blocks`` command: one module a subcommand."""

import typer

from hybrid_blocks.cli import doctor, plan, replay

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(doctor.doctor)
app.command("plan")(plan.plan_command)
app.command("replay")(replay.replay_command)


@app.callback()
def main() -> None:
    """KV-cache block manager for hybrid LLMs."""
