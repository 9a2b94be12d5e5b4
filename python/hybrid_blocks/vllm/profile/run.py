"""Runs a profile level by level, each in its own process, and collects the findings."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.vllm.level import VARIABLE, Level
from hybrid_blocks.vllm.profile.result import Findings
from hybrid_blocks.vllm.profile.settings import BATCHED, Settings


class ProfileError(HybridBlocksError):
    """A level could not be profiled."""


def profile(settings: Settings, levels: Iterable[str]) -> dict[str, Findings]:
    """Return each level's findings.

    Raises ``ProfileError`` with the last line of its output if a level cannot be run, and if levels
    decided or said anything but the same.
    """
    findings = {
        level: _profile_level(msgspec.structs.replace(settings, level=level)) for level in levels
    }
    check_agreement(findings)
    return findings


def check_agreement(findings: Mapping[str, Findings]) -> None:
    """Raise ``ProfileError`` unless all levels decided and said the same."""
    first, *others = findings
    for level in others:
        for what in ("decisions", "outputs"):
            if getattr(findings[level], what) != getattr(findings[first], what):
                raise ProfileError(f"the {what} of levels {first} and {level} differ")


def _profile_level(settings: Settings) -> Findings:
    with tempfile.TemporaryDirectory() as folder:
        request, findings = Path(folder, "settings.json"), Path(folder, "findings.json")
        request.write_bytes(msgspec.json.encode(settings))
        environment = os.environ | {
            VARIABLE: Level.MANAGER if settings.level == BATCHED else settings.level
        }
        environment.setdefault("VLLM_TARGET_DEVICE", "cpu")
        environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        done = subprocess.run(
            [sys.executable, "-m", "hybrid_blocks.vllm.profile.worker", request, findings],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last_line = done.stdout.strip().rpartition("\n")[2]
            raise ProfileError(f"level {settings.level}: {last_line}")
        return msgspec.json.decode(findings.read_bytes(), type=Findings)
