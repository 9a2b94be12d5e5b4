"""vLLM's tests at one level, in one run of pytest."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rig.level import environment_of
from rig.verdict import Outcomes

RIG = Path(__file__).parent.parent

FEW = 16
TEST_TIMEOUT_S = 300
ENDED_IN_ORDER = (0, 1, 5)  # all passed, some failed, none left


@dataclass(frozen=True, kw_only=True)
class Session:
    """Where and how vLLM's tests are run.

    ``tests`` is the folder that holds them, ``hub`` a hub cache, and ``logs`` a folder for pytest's
    output. ``workers`` is the number of processes.
    """

    tests: Path
    hub: Path
    logs: Path
    workers: int

    def run(
        self, name: str, level: str, targets: list[str], leave_out: Iterable[str] = ()
    ) -> tuple[Outcomes, set[str]]:
        """Run ``targets``, files or single tests; return every test's outcome by its id.

        The second part are the tests that used classes that the level puts in place of vLLM's. A
        test that kills its process fails, and so does one that hangs; the others go on.

        Raises:
            RuntimeError: pytest ended in another way than with the outcome of tests.
        """
        files = {it: self.logs / f"{name}-{level}.{it}" for it in ("targets", "out", "json", "log")}
        files["targets"].write_text("\n".join(targets))
        files["out"].write_text("\n".join(leave_out))
        files["json"].unlink(missing_ok=True)
        # Each process imports vLLM first, which takes longer than a few tests.
        few = len(targets) <= FEW and all("::" in target for target in targets)
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "rig.level"),
            *("-p", "no:cacheprovider", "--tb=short", "--continue-on-collection-errors"),
            *(f"-n{1 if few else self.workers}", "--dist=worksteal"),
            *("--max-worker-restart=100", f"--timeout={TEST_TIMEOUT_S}"),
            # The timeout above cannot reach a test that is stuck outside Python.
            *("-o", f"faulthandler_timeout={2 * TEST_TIMEOUT_S}"),
            *("-o", "faulthandler_exit_on_timeout=true"),
            f"@{files['targets']}",
        ]
        path = [str(RIG), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            **environment_of(level),
            "HF_HOME": str(self.hub),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(path),  # the package that this process imports
            "RIG_LEFT_OUT": str(files["out"]),
            "RIG_OUTCOMES": str(files["json"]),
            "VLLM_TARGET_DEVICE": "cpu",
        }
        with files["log"].open("wb") as log:
            done = subprocess.run(
                command, cwd=self.tests, env=environment, stdout=log, stderr=log, check=False
            )
        if done.returncode not in ENDED_IN_ORDER:
            raise RuntimeError(f"pytest ended with {done.returncode}; see {files['log']}")
        noted = json.loads(files["json"].read_text())
        return noted["outcomes"], set(noted["reached"])
