"""The commands of ``docs/tutorial.md`` do what the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import models
import pytest
from ports import held_port
from server import wait_until_up

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()
INSTALL, PLAN, SERVE, ASK, WATCH = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_install_is_a_target_of_the_makefile() -> None:
    (target,) = re.findall(r"^make (\S+)$", INSTALL, re.M)
    assert re.search(rf"^{target}: ", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.full
def test_a_newcomer_plans_serves_asks_and_watches(tmp_path: Path) -> None:
    models.build("granitemoehybrid", tmp_path / "build/small")
    # The Python that runs this test stands for the environment that the page activates.
    (tmp_path / "bin").mkdir()
    python = f'#!/bin/sh\nexec {sys.executable} -W ignore "$@"\n'
    (tmp_path / "bin/python").write_text(python)
    (tmp_path / "bin/python").chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    where: dict[str, Any] = {"cwd": tmp_path, "env": environment, "text": True}

    with held_port() as port:

        def written(commands: str) -> list[str]:
            text = re.sub(r"^source .*$", "", commands, flags=re.M).replace("8000", str(port))
            return ["bash", "-eu", "-c", text]

        def run(commands: str) -> str:
            return str(subprocess.run(written(commands), check=True, stdout=PIPE, **where).stdout)

        assert run(PLAN).startswith("verdict: level natural runs more requests at once than vLLM")
        log = tmp_path / "log"
        with log.open("wb") as output:
            serve = SERVE.replace("HYBRID_BLOCKS=natural", "HYBRID_BLOCKS=natural exec")
            server = subprocess.Popen(written(serve), stdout=output, stderr=output, **where)
        try:
            wait_until_up(f"http://localhost:{port}", server, log)
            assert "level natural; groups: 1 Mamba, 1 FullAttention" in log.read_text()
            answers = [json.loads(line) for line in re.split(r"(?<=\})(?=\{)", run(ASK))]
            assert [answer["usage"]["completion_tokens"] for answer in answers] == [8, 8]
            shown = run(WATCH)
            assert re.search(r"level natural", shown)
            assert re.search(r"^slabs ", shown, re.M)
            assert re.search(r"^checkpoints", shown, re.M)
        finally:
            server.terminate()
            server.wait(timeout=60)
