"""The loop of the view: read, show, and wait for a key."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from hybrid_blocks.tools.top.frame import View
from hybrid_blocks.tools.top.read import GoneError, Reading

QUITS = frozenset(b"qQ")


@contextmanager
def keys() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits for a number of seconds and returns early, with True, on ``q``.

    Keys are not shown and need no Enter. Where the standard input is no terminal, it only waits.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    try:
        yield partial(_wait_for_key, file)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _wait_for_key(file: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([file], [], [], left)[0]:
            pressed = os.read(file, 64)
            if not pressed or not QUITS.isdisjoint(pressed):  # nothing: the terminal is gone
                return True
    return False


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
