"""Runs a profile, a process a level, and collects the findings."""

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from hybrid_blocks.vllm.profile.level_process import LevelProcess, ProfileError
from hybrid_blocks.vllm.profile.result import Findings
from hybrid_blocks.vllm.profile.settings import Settings


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
    """Raise ``ProfileError`` unless all levels decided and said the same."""
    first, *others = findings
    for level in others:
        for what in ("decisions", "outputs"):
            if getattr(findings[level], what) != getattr(findings[first], what):
                raise ProfileError(f"the {what} of levels {first} and {level} differ")
