"""Served models on two pipeline stages, or two tensor-parallel ranks, at level ``natural``."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import models
import pytest
from server import Server, serve
from traffic import PREFIX, Answer, client, complete

# The first model runner makes room for what a stage gets from the one before while it traces.
TRACED = (
    *("--no-enforce-eager", "--compilation-config"),
    '{"mode": 2, "backend": "eager", "custom_ops": ["all"]}',
)
SLABS_FOR_FEW = 24
PROMPTS = [f"{PREFIX[: 150 * (turn % 3 + 1)]} Question {turn % 4}." for turn in range(6)]


async def answers(server: Server) -> list[Answer]:
    """Ask for each prompt twice in turn, then for longer ones at the same time."""
    async with client(server) as api:
        found = [await complete(api, prompt, 24) for prompt in (*PROMPTS, *PROMPTS)]
        longer = [complete(api, f"{prompt} And then?", 24) for prompt in PROMPTS]
        return [*found, *await asyncio.gather(*longer)]


@pytest.mark.parametrize(
    ("kind", "settings", "parts"),
    [
        # One stage has one layer of attention and four with states, the other one and two.
        pytest.param("qwen3_next", {"num_hidden_layers": 8}, "5,3", marks=pytest.mark.full),
        # The last stage has no layer of full attention.
        ("gemma3_text", {}, "3,3"),
        # Each rank has all layers, and half the heads of each state.
        pytest.param("granitemoehybrid", {}, None, marks=pytest.mark.full),
    ],
)
def test_two_workers_answer_as_one(kind: str, settings: dict[str, Any], parts: str | None) -> None:
    model = models.build(kind, name=f"{kind}-in-stages", **settings)
    cut = "tensor" if parts is None else "pipeline"
    options = ("--max-num-seqs", "4", "--num-gpu-blocks-override", str(SLABS_FOR_FEW), *TRACED)
    variables = {"HYBRID_BLOCKS_CHECK": "1"}
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        started = [
            serve(
                model,
                "natural",
                models.BUILD / f"{kind}-on-{workers}.log",
                *options,
                *(f"--{cut}-parallel-size", str(workers)),
                variables=variables
                | ({"VLLM_PP_LAYER_PARTITION": parts} if parts and workers > 1 else {}),
            )
            for workers in (1, 2)
        ]
        whole, split = threads.map(stack.enter_context, started)
        assert all("level natural" in server.log_text() for server in (whole, split))
        expected, found = (asyncio.run(answers(server)) for server in (whole, split))
        in_turn = 2 * len(PROMPTS)
        assert found[:in_turn] == expected[:in_turn]
        assert sum(answer.cached_tokens for answer in found[len(PROMPTS) : in_turn]) > 0
        assert [len(answer.tokens) for answer in found] == [24] * len(found)
        figures = split.metrics()
        assert figures["hybrid_blocks_slabs"] == SLABS_FOR_FEW - 1
        log = split.log_text()
        assert "HYBRID_BLOCKS_CHECK: hits" in log
        assert ("forwards leave checkpoints of prompts" in log) == (kind != "gemma3_text")
