"""Waiting at a terminal for a key."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

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
