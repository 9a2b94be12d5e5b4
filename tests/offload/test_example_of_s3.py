"""The example that serves with a bucket: its command, and its bucket on a local server of S3."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from hybrid_blocks._core.offload import ObjectStore
from hybrid_blocks.offload.options import Options
from hybrid_blocks.tools.read.command import read_command
from object_server import object_server
from test_host_cache import LAYOUTS

SCRIPT = Path(__file__).parents[2] / "examples/offload_s3.sh"


@pytest.fixture
def offload_command(tmp_path: Path) -> list[str]:
    """The words with which the example of offload starts vLLM."""
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\nprintf "%s\\0" "HYBRID_BLOCKS=$HYBRID_BLOCKS" vllm "$@"\n')
    fake.chmod(0o755)
    told = {"MODEL": "Qwen/Qwen3.5-27B", "OBJECTS": "s3://chunks/prefix"}
    environment = os.environ | told | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = [str(SCRIPT), "--tensor-parallel-size", "2"]
    output = subprocess.run(run, env=environment, check=True, capture_output=True, text=True)
    return output.stdout.split("\0")[:-1]


def test_an_engine_with_a_bucket_reaches_level_natural(offload_command: list[str]) -> None:
    command = read_command(offload_command)
    assert command.level == "natural"
    assert command.deployment.level_refusal is None
    assert offload_command[-2:] == ["--tensor-parallel-size", "2"]


@pytest.mark.wheel
def test_the_bucket_of_the_example_is_opened_with_keys_of_the_environment(
    offload_command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads(offload_command[offload_command.index("--kv-transfer-config") + 1])
    options = Options.parse(config["kv_connector_extra_config"])
    assert options.objects == "s3://chunks/prefix"
    with object_server() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        store = ObjectStore(options.objects, layouts=LAYOUTS)
        assert store.wait(60)
        assert store.take_warnings() == []
        store.close()
