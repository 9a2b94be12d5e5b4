"""Checks of packages for a doctor to try, in processes that import no test."""

import os
import signal
from typing import Any


def works(_: Any) -> str:
    return "as it should"


def fails(_: Any) -> str:
    raise RuntimeError("the moon is full\nand more")


def is_killed(_: Any) -> str:
    os.kill(os.getpid(), signal.SIGILL)
    return "alive"


def needs_a_variable(_: Any) -> str:
    return "as it should" if "MOON" in os.environ else is_killed(_)


def prints_and_exits(_: Any) -> str:
    os.write(1, b"noise")
    os._exit(3)
