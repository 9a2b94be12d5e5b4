"""Runs a profile: one process a level, some steps at a time in turn."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.tools.profile.result import Findings
from hybrid_blocks.tools.profile.workload import CHECKED, FLOOR, Settings, level_of
from hybrid_blocks.vllm.level import CHECK, VARIABLE, Level

_CLASS = re.compile(r"^[\w.]+(?:Error|Exception|Exit): ")
"""How Python begins the last line of an uncaught exception: a person needs what follows."""


class ProfileError(HybridBlocksError):
    """A level could not be profiled."""


class LevelProcess:
    """A worker that warms up on its own and then waits for its turns.

    It writes a byte whenever it begins to wait, continues when it gets a line, and exits when it
    has written its findings. It is a context manager: the worker is gone at its end. Files lie in
    ``folder``, which must be empty.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._level = settings.level
        self._findings = folder / "findings.json"
        self._output = folder / "output.txt"
        request = folder / "settings.json"
        request.write_bytes(msgspec.json.encode(settings))
        environment = os.environ | {
            VARIABLE: level_of(settings.level),
            CHECK: "1" if settings.level.endswith(CHECKED) else "0",
        }
        environment.setdefault("VLLM_TARGET_DEVICE", "cpu")
        environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        environment.setdefault("HUMMING_DISABLE_PARALLEL_BUILD", "1")
        waiting, signal = os.pipe()
        worker = "hybrid_blocks.tools.profile.worker"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", worker, request, self._findings, str(signal)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(signal,),
            )
        os.close(signal)
        self._waiting = os.fdopen(waiting, "rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._waiting.close()

    def wait(self) -> bool:
        """Wait until it waits for its turn; return whether it does, or is done.

        Raises ``ProfileError`` with the last line of its output if it failed.
        """
        if self._waiting.read(1):
            return True
        if self._process.wait() != 0:
            last_line = self._output.read_text(errors="replace").strip().rpartition("\n")[2]
            raise ProfileError(f"level {self._level}: {_CLASS.sub('', last_line)}")
        return False

    def take_turn(self) -> bool:
        """Let it run some steps; return whether it waits for another turn."""
        if stdin := self._process.stdin:
            # Where it is gone, waiting says why.
            with suppress(BrokenPipeError):
                stdin.write(b"\n")
                stdin.flush()
        return self.wait()

    def findings(self) -> Findings:
        """Return what it found, once it is done."""
        return msgspec.json.decode(self._findings.read_bytes(), type=Findings)


def profile(settings: Settings, levels: Iterable[str]) -> dict[str, Findings]:
    """Return each level's findings.

    Levels warm up side by side and then run a few steps in turn, so that all meet the same noise.

    Raises ``ProfileError`` with the last line of its output if a level cannot be run, and if levels
    decided or said anything but the same.
    """
    with ExitStack() as stack:
        processes = {}
        for level in levels:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            of_level = msgspec.structs.replace(settings, level=level)
            processes[level] = stack.enter_context(LevelProcess(of_level, folder))
        waiting = [process for process in processes.values() if process.wait()]
        while waiting:
            waiting = [process for process in waiting if process.take_turn()]
        findings = {level: process.findings() for level, process in processes.items()}
    check_agreement(findings)
    return findings


def check_agreement(findings: Mapping[str, Findings]) -> None:
    """Raise ``ProfileError`` unless all levels over the same layout decided and said the same."""
    first: dict[bool, str] = {}
    for level in findings:
        if level == FLOOR:
            continue
        # Another layout of the memory leads to other decisions.
        same = first.setdefault(level_of(level) == Level.NATURAL, level)
        for what in ("decisions", "outputs"):
            if getattr(findings[level], what) != getattr(findings[same], what):
                raise ProfileError(f"the {what} of levels {same} and {level} differ")
