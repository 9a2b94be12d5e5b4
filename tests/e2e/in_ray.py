"""Ray's page of metrics shows the plugin's figures next to vLLM's; run by ``make test-ray``."""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import models
import pytest
import ray
from ports import HOST
from prometheus_client.parser import text_string_to_metric_families
from server import KV_CACHE_BYTES, MODEL, environment

PATIENCE_S = 120.0
PROMPT = list(range(1, 200))
VLLM = "ray_vllm_request_success_total"


class Replica:
    """An engine in a process of Ray's, as a replica of Ray Serve makes it."""

    def __init__(self, model: str) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - in Ray's process
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415
        from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger  # noqa: PLC0415

        options = AsyncEngineArgs(
            model=model,
            served_model_name=[MODEL],
            enforce_eager=True,
            max_model_len=1024,
            enable_prefix_caching=True,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
        )
        self._engine = AsyncLLM.from_engine_args(options, stat_loggers=[RayPrometheusStatLogger])

    async def answer(self, name: str) -> int:
        """Answer the prompt, and return the tokens of the answer."""
        from vllm import SamplingParams  # noqa: PLC0415

        options = SamplingParams(max_tokens=4, ignore_eos=True)
        count = 0
        async for output in self._engine.generate({"prompt_token_ids": PROMPT}, options, name):
            count = len(output.outputs[0].token_ids)
        return count


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """The address of Ray's metrics, after one replica has answered three requests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment("natural").items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where Ray's process finds `Replica`
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the home folder
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address=HOST,
            _system_config={"metrics_report_interval_ms": 500},
        )
        local: Any = ray  # Ray's types leave out members that `remote` adds
        try:
            made = local.remote(Replica).remote(str(models.build("granitemoehybrid")))
            counts = [local.get(made.answer.remote(f"r{number}")) for number in range(3)]
            assert counts == [4, 4, 4]
            (node,) = local.nodes()
            yield f"http://{HOST}:{node['MetricsExportPort']}/metrics"
        finally:
            ray.shutdown()


def samples(page: str) -> list[Any]:
    """Return the samples on a page, or none while it cannot be read."""
    try:
        with urlopen(page, timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return [sample for family in families for sample in family.samples]
    except (URLError, ConnectionError):
        return []


def shown(page: str, name: str, value: float, **labels: str) -> dict[str, str]:
    """Wait until a sample with these labels has a value, and return all its labels."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [sample for sample in samples(page) if sample.name == name]
        for one in found:
            if labels.items() <= one.labels.items() and one.value == value:
                return dict(one.labels)
        assert time.monotonic() < deadline, (name, found)
        time.sleep(0.5)


def test_the_plugins_figures_have_the_labels_of_vllms(page: str) -> None:
    ours = shown(page, "ray_hybrid_blocks_info", 1, level="natural", reason="")
    theirs = shown(page, VLLM, 3, finished_reason="length")
    same = ("model_name", "engine", "ReplicaId", "WorkerId")
    assert [ours[name] for name in same] == [theirs[name] for name in same]
    assert (ours["model_name"], ours["engine"]) == (MODEL, "0")


def test_counts_are_those_of_the_engine(page: str) -> None:
    shown(page, "ray_hybrid_blocks_hits_total", 1, ended_by="unseen")
    shown(page, "ray_hybrid_blocks_hits_total", 2, ended_by="complete")
    # The model has one group of states, and two requests resumed from a copy of one.
    shown(page, "ray_hybrid_blocks_forks_total", 2)
    # An engine that is idle shows that no request holds a block.
    shown(page, "ray_hybrid_blocks_blocks", 0, pool="attention", state="live")
