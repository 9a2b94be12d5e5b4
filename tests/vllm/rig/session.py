"""vLLM's tests at one level, in as many pytest runs as that takes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rig.level import environment_of
from rig.progress import Outcomes, Progress

RIG = Path(__file__).parent.parent

FEW = 16
TEST_TIMEOUT_S = 300
# pytest's own timeout cannot reach a test that is stuck outside Python.
SILENCE_S = 2 * TEST_TIMEOUT_S
ENDED_IN_ORDER = (0, 1, 5)  # all passed, some failed, none left


@dataclass(frozen=True, kw_only=True)
class Session:
    """Where and how vLLM's tests are run.

    ``tests`` is the folder that holds them, ``hub`` a hub cache, and ``logs`` a folder for pytest's
    output and for progress. ``workers`` is the number of processes, and ``options`` are further
    arguments of pytest. ``code`` names the state of the package: an interrupted run continues only
    with the same.
    """

    tests: Path
    hub: Path
    logs: Path
    workers: int
    code: str
    options: tuple[str, ...] = ()

    def run(
        self, name: str, level: str, targets: list[str], leave_out: Iterable[str] = ()
    ) -> Outcomes:
        """Run ``targets``, files or single tests, and return every test's outcome by its id.

        An interrupted run goes on where it was. A test that kills pytest, or hangs it, is noted as
        ``crashed`` or ``hung``, and the others go on.
        """
        progress = self._progress(name, level)
        targets_file = self.logs / f"{name}-{level}.targets"
        targets_file.write_text("\n".join(targets))
        seen_file = self.logs / f"{name}-{level}.seen"
        while True:
            seen = progress.outcomes()
            seen_file.write_text("\n".join([*seen, *leave_out]))
            # Each process imports vLLM first, which takes longer than a few tests.
            few = len(targets) <= FEW and all("::" in target for target in targets)
            command = [
                *(sys.executable, "-m", "pytest", "-q", "-p", "rig.level"),
                *("-p", "no:cacheprovider", "--tb=short", "--continue-on-collection-errors"),
                *(f"-n{0 if few else self.workers}", "--dist=worksteal"),
                *("--max-worker-restart=100", f"--timeout={TEST_TIMEOUT_S}"),
                *(*self.options, f"@{targets_file}"),
            ]
            environment = os.environ | {
                **environment_of(level),
                "HF_HOME": str(self.hub),
                "HF_HUB_OFFLINE": "1",
                # The tests import the package that this process imports.
                "PYTHONPATH": os.pathsep.join(
                    [str(RIG), *filter(None, [os.environ.get("PYTHONPATH")])]
                ),
                "RIG_PROGRESS": str(progress.file),
                "RIG_SEEN": str(seen_file),
                "VLLM_TARGET_DEVICE": "cpu",
            }
            with (self.logs / f"{name}-{level}.log").open("ab") as log:
                process = subprocess.Popen(
                    command,
                    cwd=self.tests,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            how = watch(process, progress)
            if how is None:
                return progress.outcomes()
            for test in progress.unfinished():
                progress.note(test, how)
            if len(progress.outcomes()) == len(seen):
                raise RuntimeError(f"pytest {how} before any test; see {log.name}")

    def reached(self, name: str, level: str) -> set[str]:
        """Return the tests of this name that used classes that the level puts in place of
        vLLM's."""
        return self._progress(name, level).reached()

    def forget(self, name: str, level: str) -> None:
        """Let the next `run` of this name start again."""
        self._progress(name, level).forget()

    def _progress(self, name: str, level: str) -> Progress:
        # Without the plugin it does not matter what its code is.
        code = "" if level == "off" else f"-{self.code}"
        return Progress(self.logs / f"{name}-{level}{code}.progress")


def watch(
    process: subprocess.Popen[bytes], progress: Progress, silence_s: float = SILENCE_S
) -> str | None:
    """Wait for pytest; return how it ended, ``crashed`` or ``hung``, if not in order.

    Whatever it started is gone afterwards, also where this process is interrupted.
    """
    try:
        size, since = progress.size(), time.monotonic()
        while time.monotonic() - since <= silence_s:
            try:
                code = process.wait(timeout=min(silence_s, 5))
                return None if code in ENDED_IN_ORDER else "crashed"
            except subprocess.TimeoutExpired:
                if progress.size() != size:
                    size, since = progress.size(), time.monotonic()
        return "hung"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
