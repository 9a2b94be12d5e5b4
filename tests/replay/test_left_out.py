"""Managers side by side serve the same requests: what one cannot hold, none is given."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import answer
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import (
    EngineConfig,
    ManagerName,
    ReplayError,
    block_cache,
    model_cache,
    replay,
    request_limits,
)
from hybrid_blocks.tools.replay.cache import BlockUnit
from hybrid_blocks.tools.replay.limits import LeftOut, RequestLimit
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.tools.trace.builder import TraceBuilder

MODEL, MEMORY = "Qwen3.5-27B", 4 * 2**30
SKIP = EngineConfig(reject_too_large=True)
of_rust = partial(replay, manager_name=ManagerName.RUST)


def of_lengths(*lengths: int) -> Trace:
    builder = TraceBuilder("lengths")
    for length in lengths:
        spans = [builder.fresh(length)]
        builder.add(spans, arrival=0, prompt_tokens=length - 2, output_tokens=2)
    return builder.build()


def test_a_limit_of_another_manager_leaves_requests_out_and_says_whose_it_is() -> None:
    trace = of_lengths(40, 100, 130, 161, 300)
    limits = (
        RequestLimit(manager="small", num_blocks=7, max_tokens=110),
        RequestLimit(manager="rust", num_blocks=10, max_tokens=160),
    )
    result, _ = of_rust(trace, cache=block_cache(10, 16), config=SKIP, limits=limits)
    assert (result.requests, result.rejected_requests) == (3 - 1, 3)
    assert result.left_out == (
        LeftOut(manager="small", max_tokens=110, requests=3, shortest=130, longest=300),
        LeftOut(manager="rust", max_tokens=160, requests=1, shortest=300, longest=300),
    )


def test_the_last_token_of_a_request_takes_no_room() -> None:
    limits = (RequestLimit(manager="rust", num_blocks=10, max_tokens=160),)
    cache = block_cache(10, 16)
    result, _ = of_rust(of_lengths(161), cache=cache, config=SKIP, limits=limits)
    assert (result.requests, result.left_out) == (1, ())


def test_without_leave_to_skip_the_error_names_the_manager_before_anything_runs() -> None:
    limits = (
        RequestLimit(manager="rust", num_blocks=10, max_tokens=160),
        RequestLimit(manager="small", num_blocks=7, max_tokens=110, unit=BlockUnit(name="slab")),
    )
    trace = of_lengths(40, 130)
    with pytest.raises(ReplayError, match=r"1 of 2 .* into 7 slabs of small, .*110"):
        of_rust(trace, cache=block_cache(10, 16), config=EngineConfig(), limits=limits)


@pytest.mark.vllm
def test_our_manager_and_vllms_serve_the_same_requests_of_a_model(tmp_path: Path) -> None:
    cache = model_cache(MODEL, MEMORY, Deployment())
    ours, theirs = request_limits((ManagerName.RUST, ManagerName.VLLM), cache, SKIP)
    assert ours.max_tokens > theirs.max_tokens
    between = (ours.max_tokens + theirs.max_tokens) // 2
    path = tmp_path / "trace.csv"
    rows = [f"2024-05-01 10:00:00.0000000,{n - 2},2" for n in (500, between, 900)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    output, found = side_by_side(tmp_path, path)
    for result in found:
        assert (result["requests"], result["rejected_requests"]) == (2, 1)
        assert result["prompt_tokens"] == 498 + 898
        assert result["left_out"] == [
            {"manager": "vllm", "max_tokens": theirs.max_tokens, "requests": 1}
            | {"shortest": between, "longest": between}
        ]
    assert f"1 of {between:,} tokens: vllm holds {theirs.max_tokens:,}" in output
    assert (found[0]["block_unit"], found[0]["block_tokens"]) == ("slab", None)
    assert (found[1]["block_unit"], found[1]["block_tokens"]) == ("block", 784)
    assert "slabs of 37 MiB" in output
    assert "blocks of 784 tokens, 49 MiB" in output


def side_by_side(tmp_path: Path, trace: Path) -> tuple[str, list[dict[str, Any]]]:
    written = tmp_path / "figures.json"
    arguments = ("replay", trace, "--model", MODEL, "--memory", MEMORY, "--on-error", "skip")
    managers = ("--manager", "rust", "--manager", "vllm", "--all", "--json", written)
    return answer(*arguments, *managers), json.loads(written.read_bytes())
