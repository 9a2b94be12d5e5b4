"""The planned number of requests is what vLLM's own manager takes, and not one more."""

import numpy as np
import pytest

pytest.importorskip("vllm", reason="the oracle is vLLM itself", exc_type=ImportError)

from hybrid_blocks.model import load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.plan import Deployment, VllmPlan, plan_vllm
from hybrid_blocks.tools.plan.report import Plan, make_report
from hybrid_blocks.tools.replay import (
    EngineConfig,
    ManagerName,
    VllmOptions,
    make_manager,
    model_cache,
    replay,
)
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.trace.builder import TraceBuilder

REQUESTS = 12
OUTPUTS = 2


def _memory(plan: VllmPlan, length: int, requests: int) -> int:
    blocks = 1 + plan.prefill_blocks(length) + (requests - 1) * plan.decode_blocks(length)
    return blocks * plan.block_bytes


def _serve(manager: ReplayManager, number: int, prompt_tokens: int, step: int) -> bool:
    """Compute a prompt that nothing else begins with, and make room for one token after it."""
    prompt = np.arange(prompt_tokens, dtype=np.int32) + number * prompt_tokens
    request = manager.add_request(str(number), prompt)
    handle, computed = np.array([request], np.int64), 0
    manager.match_prefix(request)
    while computed < prompt_tokens:
        chunk = manager.chunk(request, computed, min(step, prompt_tokens - computed))
        manager.begin_step()
        if not manager.allocate(handle, np.array([chunk], np.int32)):
            return False
        manager.advance(handle, np.array([chunk], np.int32))
        computed += chunk
    manager.append_tokens(handle, np.array([7], np.int32))
    manager.begin_step()
    return manager.allocate(handle, np.array([1], np.int32)) == 1


@pytest.mark.parametrize(
    ("name", "speculative", "step"),
    [
        *((name, speculative, 512) for name in entries() for speculative in (0, 2)),
        *((name, 0, 4096) for name in entries() if load_model(name).is_hybrid),
    ],
)
def test_vllms_manager_takes_the_planned_requests(name: str, speculative: int, step: int) -> None:
    model = load_model(name)
    options = Deployment(
        max_model_len=16_384,
        max_num_batched_tokens=step,
        num_speculative_tokens=speculative,
        in_flight_batches=1,
    )
    probe = plan_vllm(model, 2**50, options)
    block = probe.block_tokens
    # Steps longer than a block write states from inside.
    of_steps = (step + 2 * block + 5, 3 * step + 5) if step > block and model.is_hybrid else ()
    for prompt_tokens in (block // 2, 3 * block // 2 + 1, *of_steps):
        length = prompt_tokens + 1 + speculative
        # vLLM starts with room for the longest request only, and so the adapter.
        enough = probe.blocks_per_request(length) + 1
        memory = max(_memory(probe, length, REQUESTS), enough * probe.block_bytes)
        cache = model_cache(name, memory, options)
        config = EngineConfig(max_num_batched_tokens=step, watermark=0.0)
        manager = make_manager(ManagerName.VLLM, cache, config, vllm=VllmOptions())
        planned = plan_vllm(model, memory, options).requests(length)
        served = 0
        while served <= planned and _serve(manager, served, prompt_tokens, step):
            served += 1
        assert served == planned >= REQUESTS


@pytest.mark.parametrize(
    ("name", "speculative"), [("Qwen3.5-27B", 0), ("Qwen3.5-27B", 2), ("Nemotron-H-8B", 0),
                              ("Granite-4.0-H-Small", 0), ("Kimi-Linear-48B-A3B", 0)],
)  # fmt: skip
def test_the_shortest_requests_run_as_often_as_the_note_says(name: str, speculative: int) -> None:
    """Replayed with vLLM's own manager, more of them than can run at once."""
    options = Deployment(max_model_len=8192, max_num_seqs=4096, num_speculative_tokens=speculative)
    model, memory = load_model(name), 12 * 2**30
    planned = plan_vllm(model, memory, options).requests(1)
    notes = " ".join(make_report(Plan(model, memory, options)).notes)
    assert f"at most {planned} of max_num_seqs 4096 run" in notes
    builder = TraceBuilder("short")
    for _ in range(2 * planned):
        builder.add([builder.fresh(8)], arrival=0, prompt_tokens=8 - OUTPUTS, output_tokens=OUTPUTS)
    cache = model_cache(name, memory, options)
    config = EngineConfig(max_num_seqs=4096, watermark=0.0)
    result, _ = replay(builder.build(), manager_name=ManagerName.VLLM, cache=cache, config=config)
    assert result.peak_running == planned


@pytest.mark.parametrize(("card", "is_cut"), [("H100-80GB", False), ("L40S", True)])
def test_a_prompt_returns_to_a_state_that_its_only_step_left_in_it(card: str, is_cut: bool) -> None:
    options = Deployment(max_model_len=16_384, card=card, in_flight_batches=1)
    cache = model_cache("Qwen3.5-27B", 24 * 2**30, options)
    manager = make_manager(ManagerName.VLLM, cache, EngineConfig(), vllm=VllmOptions())
    block = plan_vllm(load_model("Qwen3.5-27B"), 24 * 2**30, options).block_tokens
    prompt = np.arange(4 * block + 100, dtype=np.int32)
    chunks, computed = [], 0
    request = manager.add_request("first", prompt)
    handle = np.array([request], np.int64)
    assert manager.match_prefix(request) == 0
    while computed < len(prompt):
        chunks.append(manager.chunk(request, computed, len(prompt) - computed))
        manager.begin_step()
        assert manager.allocate(handle, np.array(chunks[-1:], np.int32))
        manager.advance(handle, np.array(chunks[-1:], np.int32))
        computed += chunks[-1]
    assert chunks == ([4 * block, 100] if is_cut else [4 * block + 100])
    manager.begin_step()
    manager.free(handle)
    assert manager.match_prefix(manager.add_request("again", prompt)) == 4 * block
