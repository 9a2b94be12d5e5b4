"""Prefill and decode apart: two engines over NIXL, at level natural on both sides."""

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import models
import pytest
from ports import held_port
from server import Server, serve
from traffic import PREFIX, encode

pytest.importorskip("nixl", reason="pip install nixl")
BUILD = Path(__file__).parents[2] / "build" / "e2e"
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

KIND = "granitemoehybrid"
SLABS = {"kv_producer": 40, "kv_consumer": 60, "kv_both": 50}
LEASE_S = 6
CHOSEN = "hybrid_blocks_connector_loads_total"
READS = "vllm:num_requests_kv_fetch_by_stage"
TO_BE_READ = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}
PROMPTS = [encode(f"{PREFIX[: 150 * (turn % 3 + 1)]} Question {turn % 4}.") for turn in range(6)]
PROMPTS += [encode(f"Story {number}. {PREFIX[number * 30 :][:200]}") for number in range(3)]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine's role, level and connectors. ``weights`` put offload and reads in one list."""

    role: str
    level: str = "natural"
    weights: list[float] | None = None
    fails: bool = False
    tp_size: int = 1

    @property
    def options(self) -> list[str]:
        """Options of vLLM's server."""
        told = ["--max-num-seqs", "4", "--num-gpu-blocks-override", str(SLABS[self.role])]
        told += ["--max-num-batched-tokens", str(models.TOKENS_PER_STEP[KIND])]
        told += ["--kv-transfer-config", json.dumps(self._transfer())]
        if self.tp_size > 1:
            told += ["--tensor-parallel-size", str(self.tp_size)]
        return told

    def _transfer(self) -> dict[str, Any]:
        transfer: dict[str, Any] = {
            "kv_connector": "HybridNixlConnector",
            "kv_connector_module_path": "hybrid_blocks.offload.nixl",
            "kv_role": self.role,
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "fail" if self.fails else "recompute",
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
        }
        if self.weights is None:
            return transfer
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
        return transfer | {
            "kv_connector": "HybridMultiConnector",
            "kv_connector_module_path": "hybrid_blocks.offload.multi",
            "kv_connector_extra_config": {
                "connectors": [dict(transfer), below],
                "weights": self.weights,
            },
        }


Start = Callable[..., list[Server]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start engines side by side: most of their time passes before they compute."""
    with ExitStack() as stack, ThreadPoolExecutor() as threads:

        def started(*engines: Engine, model: Path | None = None) -> list[Server]:
            model = model or models.build(KIND, BUILD)
            ports = [stack.enter_context(held_port()) for _ in engines]
            served = [
                serve(
                    model,
                    engine.level,
                    BUILD / f"apart-{number}-{engine.role}.log",
                    *engine.options,
                    variables=variables(port),
                )
                for number, (engine, port) in enumerate(zip(engines, ports, strict=True))
            ]
            servers = list(threads.map(stack.enter_context, served))
            for engine, server in zip(engines, servers, strict=True):
                assert ("level natural" in server.log_text()) is (engine.level == "natural")
            return servers

        yield started


def variables(port: int) -> dict[str, str]:
    return {
        # An engine that stops answers no read over TCP; it would over memory that both share.
        "UCX_TLS": "tcp,self",
        "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
        "HYBRID_BLOCKS_CHECK": "1",
    }


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


def wait_for(server: Server, name: str, value: float, seconds: float) -> None:
    """Take steps until a figure has a value: figures are published by steps, once a second."""
    deadline = time.monotonic() + seconds
    while server.metrics()[name] != value:
        assert time.monotonic() < deadline, f"{name} is {server.metrics()[name]}, not {value}"
        ask(server, [1, 2, 3], 1)
        time.sleep(1.1)


def told_of(server: Server, tokens: list[int]) -> dict[str, Any]:
    """Compute a prompt for another engine; return how to read it."""
    told: dict[str, Any] = ask(server, tokens, 1, TO_BE_READ)["kv_transfer_params"]
    assert told["remote_block_ids"]
    return told


def number_of_reads(server: Server) -> float:
    """Return how many reads are under way."""
    samples = server.samples()
    return sum(n for (name, labels), n in samples if name == READS and "in_progress" in labels)


def in_the_middle_of_a_read(
    other: Server, reader: Server, threads: ThreadPoolExecutor, prompt: list[int]
) -> Future[dict[str, Any]]:
    """Kill an engine while another reads its prompt; return the answer that is to come."""
    told = told_of(other, prompt)
    other.stop()
    answer = threads.submit(ask, reader, prompt, 24, told)
    deadline = time.monotonic() + 60
    while not number_of_reads(reader):
        assert time.monotonic() < deadline
        assert not answer.done()
        time.sleep(0.2)
    # Others go on meanwhile.
    assert tokens_of(ask(reader, PROMPTS[7], 8))
    assert number_of_reads(reader) == 1
    other.kill()
    return answer


def check_that_nothing_is_left(reader: Server, prompt: list[int]) -> list[int]:
    """Return the answer of an engine that reads no more: no block is held, no key is wrong."""
    again = tokens_of(ask(reader, prompt, 24))
    reader.reset_prefix_cache()
    assert again == tokens_of(ask(reader, prompt, 24))
    wait_for(reader, "vllm:kv_cache_usage_perc", 0, 60)
    assert number_of_reads(reader) == 0
    assert reader.metrics()["hybrid_blocks_held_slabs"] == 0
    return again


def test_answers_are_those_of_one_engine_whatever_becomes_of_the_other(start: Start) -> None:
    other, reader = start(Engine(role="kv_producer"), Engine(role="kv_consumer"))
    for prompt in PROMPTS:
        answer = tokens_of(ask(reader, prompt, 24, told_of(other, prompt)))
        assert answer == tokens_of(ask(other, prompt, 24))
    assert reader.metrics()["vllm:external_prefix_cache_hits_total"] > 0
    assert reader.metrics()["vllm:nixl_num_failed_transfers_total"] == 0
    wait_for(other, "hybrid_blocks_held_slabs", 0, 60)
    # No engine reads this prompt.
    ask(other, PROMPTS[0][::-1], 1, TO_BE_READ)
    wait_for(other, "vllm:nixl_num_kv_expired_reqs_total", 1, 120)
    wait_for(other, "hybrid_blocks_held_slabs", 0, 60)
    before, prompt = PROMPTS[1][::-1], PROMPTS[5][::-1]
    told = told_of(other, before)
    with ThreadPoolExecutor() as threads:
        to_come = in_the_middle_of_a_read(other, reader, threads, prompt)
        read = tokens_of(to_come.result())
    assert read == check_that_nothing_is_left(reader, prompt)
    read = tokens_of(ask(reader, before, 24, told))
    assert read == check_that_nothing_is_left(reader, before)


def test_engines_of_other_numbers_of_ranks_read_each_other(start: Start) -> None:
    model = models.build(KIND, BUILD, f"{KIND}-two-ranks", num_key_value_heads=2, mamba_n_groups=2)
    one, two = start(Engine(role="kv_both"), Engine(role="kv_both", tp_size=2), model=model)
    # These prompts share no block: what an engine computed for the other, it would not read.
    for reader, other, prompt in ((two, one, PROMPTS[6]), (one, two, PROMPTS[7])):
        answer = tokens_of(ask(reader, prompt, 24, told_of(other, prompt)))
        assert answer == tokens_of(ask(other, prompt, 24))
        metrics = reader.metrics()
        assert metrics["vllm:external_prefix_cache_hits_total"] == len(prompt) - 1
        assert metrics["vllm:nixl_num_failed_transfers_total"] == 0
        wait_for(other, "hybrid_blocks_held_slabs", 0, 60)


def test_a_read_that_breaks_ends_its_request_where_the_policy_says_so(start: Start) -> None:
    other, reader = start(Engine(role="kv_producer"), Engine(role="kv_consumer", fails=True))
    tokens_of(ask(reader, PROMPTS[6], 24, told_of(other, PROMPTS[6])))
    prompt = PROMPTS[5][::-1]
    with ThreadPoolExecutor() as threads:
        answer = in_the_middle_of_a_read(other, reader, threads, prompt)
        with pytest.raises(HTTPError, match="500") as refused:
            answer.result()
        refused.value.close()
    check_that_nothing_is_left(reader, prompt)


def test_an_engine_at_another_level_is_refused(start: Start) -> None:
    other, reader = start(Engine(role="kv_producer", level="manager"), Engine(role="kv_consumer"))
    told = told_of(other, PROMPTS[0])
    assert tokens_of(ask(reader, PROMPTS[0], 24, told)) == tokens_of(ask(other, PROMPTS[0], 24))
    assert "as where the other does not run at level natural" in reader.log_text()


def loads(server: Server) -> dict[str, float]:
    """Return how often each connector of the list was chosen, by its class."""
    found = {labels: n for (name, labels), n in server.samples() if name == CHOSEN}
    return {re.findall(r'connector="\d+ (\w+)"', labels)[0]: n for labels, n in found.items()}


def test_offload_and_another_engine_are_weighed_and_nothing_stays_held(start: Start) -> None:
    other, reader = start(
        Engine(role="kv_producer", weights=[1, 1]), Engine(role="kv_consumer", weights=[1, 1])
    )
    answers = [tokens_of(ask(other, prompt, 24)) for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        told = told_of(other, prompt)
        assert tokens_of(ask(reader, prompt, 24, told)) == answer
    wait_for(other, "hybrid_blocks_held_slabs", 0, 60)
    assert other.metrics()["vllm:nixl_num_kv_expired_reqs_total"] == 0
    assert loads(reader)["HybridNixlConnector"] > 0
    # An engine that only decodes has no state inside a prompt; the other one has it on its host.
    other.reset_prefix_cache()
    for prompt, answer in zip(PROMPTS[::2], answers[::2], strict=True):
        told = told_of(other, prompt)
        assert tokens_of(ask(reader, prompt, 24, told)) == answer
    assert loads(other)["SlabConnector"] > 0


def test_a_connector_of_weight_0_reads_nothing_and_lets_the_other_go_on(start: Start) -> None:
    other, reader = start(
        Engine(role="kv_producer", weights=[1, 1]), Engine(role="kv_consumer", weights=[0, 1])
    )
    for prompt in PROMPTS[:4]:
        answer = tokens_of(ask(other, prompt, 24))
        told = told_of(other, prompt)
        assert tokens_of(ask(reader, prompt, 24, told)) == answer
    wait_for(other, "hybrid_blocks_held_slabs", 0, 60)
    assert other.metrics()["vllm:nixl_num_kv_expired_reqs_total"] == 0
    assert not loads(reader).get("HybridNixlConnector")
