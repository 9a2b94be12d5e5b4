"""The alerts fire for each fault and for nothing else, as ``promtool`` of Prometheus finds.

``make test-dashboard`` runs this; ``PROMETHEUS`` names the program next to ``promtool``.
"""

import subprocess
from pathlib import Path

import pytest
from scraper import PROMETHEUS

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_promtool_accepts_the_alerts(words: tuple[str, ...]) -> None:
    assert PROMETHEUS is not None
    command = [str(Path(PROMETHEUS).with_name("promtool")), *words]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
