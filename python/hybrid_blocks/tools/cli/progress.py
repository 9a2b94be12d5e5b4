"""The bars of a command that takes a while."""

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hybrid_blocks.terminal import make_console


def make_progress() -> Progress:
    """Make bars with counts and times, on standard error."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=make_console(stderr=True))
