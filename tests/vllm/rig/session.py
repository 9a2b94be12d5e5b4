"""One pytest run over vLLM's tests at one level."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RIG = Path(__file__).parent.parent

FEW = 16

Outcomes = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Session:
    """Where and how vLLM's tests are run.

    ``tests`` is the folder that holds them, ``hub`` a hub cache, ``logs`` a folder for pytest's
    output, ``workers`` the number of processes, ``options`` what else pytest is told.
    """

    tests: Path
    hub: Path
    logs: Path
    workers: int
    options: tuple[str, ...] = ()

    def run(self, name: str, level: str, targets: list[str]) -> Outcomes:
        """Run ``targets``, files or single tests, and return every test's outcome by its id."""
        outcomes = self.logs / f"{name}-{level}.json"
        outcomes.unlink(missing_ok=True)
        targets_file = self.logs / f"{name}-{level}.targets"
        targets_file.write_text("\n".join(targets))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "rig.level",
            "-p",
            "no:cacheprovider",
        ]
        # Each process imports vLLM first, which takes longer than a few tests.
        few = len(targets) <= FEW and all("::" in target for target in targets)
        command += [
            f"-n{0 if few else self.workers}",
            "--dist=worksteal",
            "--timeout=900",
            "--tb=short",
        ]
        command += [*self.options, f"@{targets_file}"]
        environment = os.environ | {
            "HYBRID_BLOCKS": level,
            "HF_HOME": str(self.hub),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(RIG),
            "RIG_OUTCOMES": str(outcomes),
            "VLLM_TARGET_DEVICE": "cpu",
        }
        with (self.logs / f"{name}-{level}.log").open("wb") as log:
            subprocess.run(
                command, cwd=self.tests, env=environment, stdout=log, stderr=log, check=False
            )
        if not outcomes.exists():
            raise RuntimeError(f"pytest gave no outcomes; see {log.name}")
        found = json.loads(outcomes.read_text())
        return {test: entry["outcome"] for test, entry in found.items()}
