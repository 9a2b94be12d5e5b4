"""Python in a process of its own, and what it prints."""

import subprocess
import sys
from typing import Any


def python(*words: object, **kept: Any) -> subprocess.CompletedProcess[str]:
    """Run Python to its end, however it ends; ``kept`` are the process's environment and more."""
    command = [sys.executable, "-W", "ignore", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kept)


def printed_by_python(*words: object, **kept: Any) -> str:
    """Return what Python prints that ends well."""
    done = python(*words, **kept)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout
