"""Engines publish their figures under vLLM's labels, and each server shows them."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks.vllm.level import VARIABLE
from hybrid_blocks.vllm.metrics import FOLDER_VARIABLE, EngineCollector, served
from oracle.engines import ENGINES
from oracle.scheduler_pair import Pair, Setup
from prometheus_client import CollectorRegistry, generate_latest


def shown(folder: Path) -> list[str]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(folder))
    return [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]


def counts(folder: Path) -> dict[str, int]:
    """Blocks by state."""
    lines = [line for line in shown(folder) if line.startswith("hybrid_blocks_blocks{")]
    return {line.split('state="')[1].split('"')[0]: int(float(line.split()[-1])) for line in lines}


@pytest.mark.parametrize("level", ["pool", "manager"])
def test_an_engine_that_goes_idle_shows_no_block_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(VARIABLE, level)
    pair = Pair(Setup(ENGINES["full"], is_async=False), Random(0))
    (info,) = shown(tmp_path)
    assert info.startswith("hybrid_blocks_info{")
    assert f'level="{level}"' in info
    pair.arrive(max_tokens=3, prompt=list(range(5, 60)))
    for _ in range(6):
        pair.step()
    assert not pair.ours.running
    assert counts(tmp_path)["live"] == 0
    assert counts(tmp_path)["cached"] > 0
    pair.reset()
    assert counts(tmp_path)["cached"] == 0


def test_labels_are_those_of_the_engine_whose_block_sizes_were_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served, "_SEEN", {})
    assert served.engine_labels() == {"model_name": "", "engine": "0"}
    resolved: list[Any] = []
    monkeypatch.setattr(
        served, "vllm_resolve_kv_cache_block_sizes", lambda *found: resolved.append(found)
    )
    model = SimpleNamespace(served_model_name="mine")
    parallel = SimpleNamespace(data_parallel_index=3)
    config = SimpleNamespace(model_config=model, parallel_config=parallel)
    served.resolve_kv_cache_block_sizes("groups", config)
    assert resolved == [("groups", config)]
    assert served.engine_labels() == {"model_name": "mine", "engine": "3"}


SERVER = """
from hybrid_blocks.metrics import BLOCKS
from hybrid_blocks.vllm import attach, metrics
attach.register()
metrics.Publisher({}).publish(lambda: [BLOCKS.sample(1, state="live")])
from fastapi import FastAPI
from fastapi.testclient import TestClient
from vllm.entrypoints.serve.instrumentator.metrics import attach_router
app = FastAPI()
attach_router(app)
print(TestClient(app).get("/metrics").text.count("hybrid_blocks_blocks{") == 1)
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
def test_servers_show_what_engines_publish(tmp_path: Path, servers: int, inherits: bool) -> None:
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
