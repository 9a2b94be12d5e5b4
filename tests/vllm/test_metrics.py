"""Figures travel from engines to the server through files."""

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from hybrid_blocks.vllm.level import VARIABLE
from hybrid_blocks.vllm.metrics import FOLDER_VARIABLE, EngineCollector, Publisher, Sample
from oracle.engines import ENGINES
from oracle.scheduler_pair import Pair, Setup
from prometheus_client import CollectorRegistry, generate_latest


def blocks(state: str, value: float) -> Sample:
    return Sample("hybrid_blocks_blocks", "Blocks by state.", "gauge", {"state": state}, value)


def shown(folder: Path) -> list[str]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(folder))
    return [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]


def counts(folder: Path) -> dict[str, int]:
    """Blocks by state."""
    lines = [line for line in shown(folder) if line.startswith("hybrid_blocks_blocks{")]
    return {line.split('state="')[1].split('"')[0]: int(float(line.split()[-1])) for line in lines}


def test_what_an_engine_publishes_is_shown_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    misses = Sample("hybrid_blocks_misses", "Misses.", "counter", {"reason": "evicted"}, 3)
    Publisher().publish(lambda: [blocks("live", 2), blocks("free", 5), misses])
    pid = os.getpid()
    assert shown(tmp_path) == [
        f'hybrid_blocks_blocks{{engine_pid="{pid}",state="live"}} 2.0',
        f'hybrid_blocks_blocks{{engine_pid="{pid}",state="free"}} 5.0',
        f'hybrid_blocks_misses_total{{engine_pid="{pid}",reason="evicted"}} 3.0',
    ]


def test_figures_are_made_at_most_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    publisher = Publisher()
    publisher.publish(lambda: [blocks("live", 1)])
    publisher.publish(lambda: pytest.fail("too early"))
    later = time.monotonic() + 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    publisher.publish(lambda: [blocks("live", 7)])
    assert shown(tmp_path) == [
        f'hybrid_blocks_blocks{{engine_pid="{os.getpid()}",state="live"}} 7.0'
    ]


def test_what_may_be_the_last_for_long_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    publisher = Publisher()
    publisher.publish(lambda: [blocks("live", 1)])
    publisher.publish(lambda: [blocks("live", 0)], at_once=True)
    assert shown(tmp_path) == [
        f'hybrid_blocks_blocks{{engine_pid="{os.getpid()}",state="live"}} 0.0'
    ]


@pytest.mark.parametrize("level", ["pool", "manager"])
def test_an_engine_that_goes_idle_shows_no_block_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(VARIABLE, level)
    pair = Pair(Setup(ENGINES["full"], is_async=False), Random(0))
    pair.arrive(max_tokens=3, prompt=list(range(5, 60)))
    for _ in range(6):
        pair.step()
    assert not pair.ours.running
    assert counts(tmp_path)["live"] == 0
    assert counts(tmp_path)["cached"] > 0
    pair.reset()
    assert counts(tmp_path)["cached"] == 0


def test_an_engine_that_ended_is_no_longer_shown(tmp_path: Path) -> None:
    code = (
        "from hybrid_blocks.vllm.metrics import Publisher, Sample\n"
        "Publisher().publish(lambda: [Sample('hybrid_blocks_blocks', '', 'gauge', {}, 1)])"
    )
    environment = os.environ | {FOLDER_VARIABLE: str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert shown(tmp_path) == []


def test_an_engine_outlives_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "gone"))
    publisher = Publisher()
    publisher.publish(lambda: [blocks("live", 1)])
    assert list(tmp_path.iterdir()) == []


SERVER = """
from hybrid_blocks.vllm import metrics, plugin
plugin.register()
metrics.Publisher().publish(lambda: [metrics.Sample("hybrid_blocks_blocks", "", "gauge", {}, 1)])
from prometheus_client import generate_latest
from vllm.v1.metrics import prometheus
print("hybrid_blocks_blocks{" in generate_latest(prometheus.get_prometheus_registry()).decode())
"""


@pytest.mark.parametrize(
    ("servers", "inherits"),
    [
        pytest.param(1, False),
        pytest.param(2, True),
        pytest.param(1, True, marks=pytest.mark.full),
        pytest.param(2, False, marks=pytest.mark.full),
    ],
)
def test_each_server_of_a_port_shows_what_engines_publish(
    tmp_path: Path, servers: int, inherits: bool
) -> None:
    environment = dict(os.environ)
    environment.pop(FOLDER_VARIABLE, None)
    if servers > 1:
        environment["PROMETHEUS_MULTIPROC_DIR"] = str(tmp_path)
    if inherits:
        (tmp_path / "shared").mkdir()
        environment[FOLDER_VARIABLE] = str(tmp_path / "shared")
    server = [sys.executable, "-c", SERVER]
    done = subprocess.run(server, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip().endswith("True")


def test_without_a_folder_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    Publisher().publish(lambda: pytest.fail("nobody would read it"))
