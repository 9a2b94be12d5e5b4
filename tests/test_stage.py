"""A stage of `make test`: what failed in CI runs once more, and a real fault fails both times."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
A_TEST = """
from pathlib import Path

def test_passes(): pass

def test_needs_two_tries():
    seen = Path("seen")
    was_there = seen.exists()
    seen.touch()
    assert was_there and {holds}
"""


def run(folder: Path, script: str, *arguments: str, ci: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TESTS / script), *arguments]
    env = {"PATH": "/usr/bin", "CI": ci}
    return subprocess.run(command, check=False, text=True, capture_output=True, cwd=folder, env=env)


@pytest.mark.parametrize(
    ("ci", "holds", "status"), [("true", True, 0), ("true", False, 1), ("", True, 1)]
)
def test_a_failure_runs_again_in_ci(tmp_path: Path, ci: str, holds: bool, status: int) -> None:
    (tmp_path / "test_it.py").write_text(A_TEST.format(holds=holds))
    stage = run(tmp_path, "stage.py", "some", "test_it.py", "-n", "1", ci=ci)
    assert stage.returncode == status, stage.stdout + stage.stderr
    if status == 0:
        summary = run(tmp_path, "summary.py", "test", "build/junit", ci=ci).stdout
        assert "passed at the second try: test_it::test_needs_two_tries" in summary
        assert "pytest: 2 passed, 0 failed, 0 errors, 0 skipped" in summary
