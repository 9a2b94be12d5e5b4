"""Prefill and decode apart: two engines over NIXL, at level natural on both sides."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import models
import pytest
from server import Server, serve
from traffic import PREFIX, encode

pytest.importorskip("nixl", reason="pip install nixl")
BUILD = Path(__file__).parents[2] / "build" / "e2e"
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]  # engines start in turn

KIND = "granitemoehybrid"
PORTS = {"kv_producer": 5721, "kv_consumer": 5722}
SLABS = {"kv_producer": 40, "kv_consumer": 60}
LEASE_S = 6
CHOSEN = "hybrid_blocks_connector_loads_total"
TO_BE_READ = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}
PROMPTS = [encode(f"{PREFIX[: 150 * (turn % 3 + 1)]} Question {turn % 4}.") for turn in range(6)]
PROMPTS += [encode(f"Story {number}. {PREFIX[number * 30 :][:200]}") for number in range(3)]


def options(role: str, weights: list[float] | None) -> list[str]:
    told = ["--max-num-seqs", "4", "--max-num-batched-tokens", str(models.TOKENS_PER_STEP[KIND])]
    transfer: dict[str, Any] = {
        "kv_connector": "HybridNixlConnector",
        "kv_connector_module_path": "hybrid_blocks.offload.nixl",
        "kv_role": role,
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
    }
    if weights is not None:
        offload = {
            "spec_name": "HybridOffloadingSpec",
            "spec_module_path": "hybrid_blocks.offload",
            "host": "64MiB",
        }
        below = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": offload,
        }
        transfer |= {
            "kv_connector": "HybridMultiConnector",
            "kv_connector_module_path": "hybrid_blocks.offload.several",
            "kv_connector_extra_config": {
                "connectors": [dict(transfer), below],
                "weights": weights,
            },
        }
    told += ["--num-gpu-blocks-override", str(SLABS[role])]
    return [*told, "--kv-transfer-config", json.dumps(transfer)]


def ask(server: Server, tokens: list[int], count: int, transfer: Any = None) -> dict[str, Any]:
    body = {"model": "hybrid", "prompt": tokens, "max_tokens": count, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True, "kv_transfer_params": transfer}
    headers = {"Content-Type": "application/json"}
    question = Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
    with urlopen(question, timeout=300) as answer:
        answered: dict[str, Any] = json.loads(answer.read())
    return answered


def tokens_of(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:

        def started(
            role: str, level: str = "natural", weights: list[float] | None = None
        ) -> Server:
            variables = {
                "UCX_TLS": "tcp,sm,self",
                "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(PORTS[role]),
                "HYBRID_BLOCKS_CHECK": "1",
            }
            log, model = BUILD / f"apart-{role}-{level}.log", models.build(KIND, BUILD)
            serving = serve(model, level, log, *options(role, weights), variables=variables)
            return stack.enter_context(serving)

        yield started


def wait_for(server: Server, name: str, value: float, seconds: float) -> None:
    """Take steps until a figure has a value: figures are published by steps, once a second."""
    deadline = time.monotonic() + seconds
    while server.metrics()[name] != value:
        assert time.monotonic() < deadline, f"{name} is {server.metrics()[name]}, not {value}"
        ask(server, [1, 2, 3], 1)
        time.sleep(1.1)


def test_answers_are_those_of_one_engine_whatever_becomes_of_the_other(
    start: Callable[..., Server],
) -> None:
    other, reader = start("kv_producer"), start("kv_consumer")
    assert "level natural" in other.log_text()
    assert "level natural" in reader.log_text()
    for prompt in PROMPTS:
        told = ask(other, prompt, 1, TO_BE_READ)["kv_transfer_params"]
        assert told["remote_block_ids"]
        answer = tokens_of(ask(reader, prompt, 24, told))
        assert answer == tokens_of(ask(other, prompt, 24))
    assert reader.metrics()["vllm:external_prefix_cache_hits_total"] > 0
    assert reader.metrics()["vllm:nixl_num_failed_transfers_total"] == 0
    wait_for(other, "hybrid_blocks_held_slabs", 0, 60)
    # No engine reads this prompt.
    ask(other, PROMPTS[0][::-1], 1, TO_BE_READ)
    wait_for(other, "vllm:nixl_num_kv_expired_reqs_total", 1, 120)
    wait_for(other, "hybrid_blocks_held_slabs", 0, 60)
    told = ask(other, PROMPTS[1][::-1], 1, TO_BE_READ)["kv_transfer_params"]
    other.kill()
    again = tokens_of(ask(reader, PROMPTS[1][::-1], 24, told))
    reader.reset_prefix_cache()
    assert again == tokens_of(ask(reader, PROMPTS[1][::-1], 24))


def test_an_engine_at_another_level_is_refused(start: Callable[..., Server]) -> None:
    other, reader = start("kv_producer", "manager"), start("kv_consumer")
    told = ask(other, PROMPTS[0], 1, TO_BE_READ)["kv_transfer_params"]
    assert tokens_of(ask(reader, PROMPTS[0], 24, told)) == tokens_of(ask(other, PROMPTS[0], 24))
    assert "reads a prompt runs at level natural, the other does not" in reader.log_text()


def loads(server: Server) -> dict[str, float]:
    """Return how often each connector of the list was chosen, by its class."""
    found = {labels: n for (name, labels), n in server.samples() if name == CHOSEN}
    return {re.findall(r'connector="\d+ (\w+)"', labels)[0]: n for labels, n in found.items()}


def test_offload_and_another_engine_are_weighed_and_either_way_nothing_stays_held(
    start: Callable[..., Server],
) -> None:
    other, reader = start("kv_producer", weights=[1, 1]), start("kv_consumer", weights=[1, 1])
    assert "level natural" in other.log_text()
    assert "level natural" in reader.log_text()
    answers = [tokens_of(ask(other, prompt, 24)) for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        told = ask(other, prompt, 1, TO_BE_READ)["kv_transfer_params"]
        assert told["remote_block_ids"]
        assert tokens_of(ask(reader, prompt, 24, told)) == answer
    wait_for(other, "hybrid_blocks_held_slabs", 0, 60)
    assert other.metrics()["vllm:nixl_num_kv_expired_reqs_total"] == 0
    assert loads(reader)["HybridNixlConnector"] > 0
    # An engine that only decodes has no state inside a prompt; the other one has it on its host.
    other.reset_prefix_cache()
    for prompt, answer in zip(PROMPTS[::2], answers[::2], strict=True):
        told = ask(other, prompt, 1, TO_BE_READ)["kv_transfer_params"]
        assert tokens_of(ask(reader, prompt, 24, told)) == answer
    assert loads(other)["SlabConnector"] > 0


def test_a_connector_of_weight_0_reads_nothing_and_lets_the_other_engine_go_on(
    start: Callable[..., Server],
) -> None:
    other, reader = start("kv_producer", weights=[1, 1]), start("kv_consumer", weights=[0, 1])
    for prompt in PROMPTS[:4]:
        answer = tokens_of(ask(other, prompt, 24))
        told = ask(other, prompt, 1, TO_BE_READ)["kv_transfer_params"]
        assert tokens_of(ask(reader, prompt, 24, told)) == answer
    wait_for(other, "hybrid_blocks_held_slabs", 0, 60)
    assert other.metrics()["vllm:nixl_num_kv_expired_reqs_total"] == 0
    assert not loads(reader).get("HybridNixlConnector")
