"""``hybrid-blocks top``: a live view of an engine in a terminal."""

from typing import Annotated

import typer
from rich.live import Live

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.terminal import UNBOUNDED_WIDTH, make_console, plain
from hybrid_blocks.tools.cli.options import finite
from hybrid_blocks.tools.top.frame import View, frame
from hybrid_blocks.tools.top.read import GoneError, Reading, metrics_url, read_engine
from hybrid_blocks.tools.top.watch import keys, watch

WIDTH_WITHOUT_TERMINAL = 80


def top_command(
    url: Annotated[str, typer.Argument(help="Address of vLLM's server, such as localhost:8000.")],
    *,
    engine: Annotated[
        str | None, typer.Option(help="Label of one engine; all engines together otherwise.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option(min=0.1, max=3600, callback=finite, help="Seconds between two readings."),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, with counts since the engine began.")
    ] = False,
) -> None:
    """Watch slabs, hits and checkpoints of an engine; q quits."""
    address = metrics_url(url)

    def read() -> Reading:
        return read_engine(address, engine)

    console = make_console()
    if once:
        try:
            now = read()
        except GoneError as error:
            raise InvalidArgumentError(f"{address}: {error}") from None
        width = WIDTH_WITHOUT_TERMINAL if console.width == UNBOUNDED_WIDTH else console.width
        console.print(frame(View(address, None, now), width))
        return
    if not console.is_terminal:
        raise InvalidArgumentError("top draws in a terminal; --once prints one frame anywhere")
    with keys() as wait, Live(console=console, screen=True, auto_refresh=False) as live:

        def show(view: View) -> None:
            live.update(frame(view, console.width), refresh=True)

        watch(f"{plain(address)}   q quits", read, show, lambda: wait(interval))
