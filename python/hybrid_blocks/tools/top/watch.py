"""The loop of the view: read, show, wait."""

from collections.abc import Callable
from dataclasses import replace

from hybrid_blocks.tools.top.errors import GoneError
from hybrid_blocks.tools.top.frame import View
from hybrid_blocks.tools.top.reading import Reading


def watch(
    url: str, read: Callable[[], Reading], show: Callable[[View], None], wait: Callable[[], bool]
) -> None:
    """Show each reading until ``wait`` says that the user has seen enough.

    An engine that does not answer is waited for, with its last figures in view.
    """
    view = View(url, problem="waiting for the engine's first answer")
    show(view)
    last: Reading | None = None
    while True:
        try:
            now = read()
        except GoneError as error:
            # Whatever the engine counts when it is back, it is no rate since this reading.
            view, last = replace(view, problem=f"no figures: {error}; waiting for the engine"), None
        else:
            view, last = View(url, last, now), now
        show(view)
        if wait():
            return
