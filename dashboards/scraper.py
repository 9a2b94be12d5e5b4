"""A real Prometheus that scrapes one address each second, and its answers to queries of the board.

``PROMETHEUS`` names the program.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from grafana import VARIABLES
from ports import HOST, held_port

PATIENCE_S = 120.0
PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
CONFIGURATION = Path(__file__).parent / "prometheus.yml"


@contextmanager
def scraping(address: str, folder: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes an address; the context is its own address."""
    if PROMETHEUS is None:
        pytest.fail("no prometheus on the PATH; apt-get install prometheus, or set PROMETHEUS=FILE")
    with held_port() as port:
        configuration = CONFIGURATION.read_text().replace("vllm:8000", address)
        (folder / "prometheus.yml").write_text(configuration.replace("5s", "1s"))
        command = [
            *(PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}"),
            *(f"--web.listen-address={HOST}:{port}", f"--storage.tsdb.path={folder / 'data'}"),
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def ask(prometheus: str, query: str) -> list[dict[str, Any]]:
    """Return the series that a query has now."""
    with urlopen(f"{prometheus}/api/v1/query?{urlencode({'query': query})}", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def answers(prometheus: str, query: str) -> list[dict[str, Any]]:
    """Ask until there is an answer, as rates need two scrapes."""
    for name in VARIABLES:
        query = query.replace(f'"${name}"', '".*"')
    query = query.replace("$__rate_interval", "1m")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = ask(prometheus, query)
        except (URLError, ConnectionError):
            found = []  # it is not up yet
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
