"""The tests with one mutant switched on."""

import math
import os
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence

from mutants.build import CompiledTest
from mutants.mutant import Mutant

MAX_BYTES = 4 << 30
"""Memory of a test; a mutant may ask for all there is."""

ASLEEP = 20
"""Seconds of the clock for one of its own, after which a test waits for ever."""

# The same random cases in each run, and no smaller ones searched once a case failed.
ENVIRONMENT = {
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    "PROPTEST_RNG_SEED": "1",
    "RUST_BACKTRACE": "0",
}


class FailsAnywayError(Exception):
    """A test fails with no mutant switched on."""


class Runner:
    """Runs tests, those first that caught most mutants a second so far.

    A test hangs if it takes longer than ``patience`` and five times as long as without a mutant,
    in seconds of its own: on a busy machine none hangs that would not on a quiet one.

    Raises:
        FailsAnywayError: if one fails with no mutant, as nothing could be told from its failures.
    """

    def __init__(self, tests: Sequence[CompiledTest], patience: float = 20.0) -> None:
        self._patience = patience
        self._seconds = {}
        self._num_caught = Counter(tests)
        for test in tests:
            before = _seconds_of_children()
            if _run(test, 0) != "missed":
                raise FailsAnywayError(f"{test.executable.name} fails without a mutant")
            self._seconds[test] = _seconds_of_children() - before

    def run(self, mutant: Mutant) -> str:
        """Return ``caught``, ``hung`` or ``missed``."""
        for test in sorted(self._seconds, key=lambda it: self._seconds[it] / self._num_caught[it]):
            outcome = _run(test, mutant.number, self._patience + 5 * self._seconds[test])
            if outcome != "missed":
                self._num_caught[test] += 1
                return outcome
        return "missed"


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(test: CompiledTest, number: int, limit: float | None = None) -> str:
    process = subprocess.Popen(
        [test.executable, "--quiet"],
        cwd=test.folder,
        env=os.environ | ENVIRONMENT | {"MUTANT": str(number)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    resource.prlimit(process.pid, resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    if limit is not None:
        seconds = math.ceil(limit)
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
    try:
        code = process.wait(None if limit is None else limit * ASLEEP)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "hung"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "hung"
    return "caught" if code else "missed"
