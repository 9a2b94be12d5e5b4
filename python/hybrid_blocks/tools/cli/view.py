"""``hybrid-blocks view``: the page of a plan with controls, in a browser of this machine."""

from typing import Annotated

import typer

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.cli.output import need_bokeh

MOST_PORT = 65_535


def view_command(
    model: Annotated[
        str, typer.Argument(help="Model to begin with: a built-in name or a config.json.")
    ] = "Qwen3.5-27B",
    *,
    memory: Annotated[str, typer.Option(help="Free KV memory of each GPU.")] = "24GiB",
    port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="Port on 127.0.0.1; 0 is a free one.")
    ] = 5006,
) -> None:
    """Plan models in a browser: a page with controls."""
    planned = load_model(model)
    need_bokeh("view")
    from hybrid_blocks.tools.view.server import serve  # noqa: PLC0415 - optional, slow

    def ready(address: str) -> None:
        typer.echo(f"{address} shows the plan; Ctrl-C ends it")

    try:
        serve(planned, memory, port, ready)
    except OSError as error:
        raise InvalidArgumentError(f"--port {port}: {error.strerror or error}") from None
