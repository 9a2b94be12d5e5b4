"""SGLang's column in a plan: its pools at its defaults."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import answer, as_json
from hybrid_blocks.model import PlanError, load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.sglang import RELEASE, SERVED, plan_sglang

RECORDED: dict[str, list[tuple[str, int, list[Any] | None]]] = json.loads(
    Path(__file__).with_name("sglang_pools.json").read_bytes()
)
"""Results of SGLang 0.5.23's own functions: by model, of a case and GiB of memory.

Strategy, bytes of a state, state slots, slots of a request, tokens, tokens of windows, and most
requests; null where SGLang refuses.
"""
CASES: dict[str, Deployment] = {
    "plain": Deployment(),
    "fp8, tp 2": Deployment(kv_cache_dtype="fp8", tp=2),
    "tp 8": Deployment(tp=8),
    "states in bfloat16": Deployment(mamba_ssm_dtype="bfloat16"),
    "speculating": Deployment(num_speculative_tokens=3),
    "no prefix cache": Deployment(mamba_cache_mode="none"),
}
DO_NOT_DIVIDE = (
    *("Falcon-H1-7B", "Falcon-H1-34B", "Falcon-H1-3B"),
    *("Granite-4.0-H-Tiny", "Granite-4.0-H-1B", "Phi-4"),
)
"""Heads of these do not divide by 8; SGLang finds out when it loads them."""


@pytest.mark.parametrize("name", RECORDED)
def test_pools_have_the_sizes_of_sglangs_own_functions(name: str) -> None:
    model = load_model(name)
    assert model.model_type in SERVED
    for case, gib, theirs in RECORDED[name]:
        if theirs is None or (case == "tp 8" and name in DO_NOT_DIVIDE):
            with pytest.raises(PlanError):
                plan_sglang(model, gib * 2**30, CASES[case])
            continue
        plan = plan_sglang(model, gib * 2**30, CASES[case])
        assert theirs == [
            *(plan.strategy, plan.state_bytes, plan.state_slots, plan.slots_per_request),
            *(plan.tokens, plan.window_tokens, plan.max_running),
        ], case


def test_the_record_is_of_the_release_that_is_named() -> None:
    assert (RELEASE, sum(map(len, RECORDED.values()))) == ("0.5.23", 263)


def test_the_plan_shows_sglang_next_to_vllm() -> None:
    options = ("Qwen3.5-27B", "--memory", "24GiB", "--lengths", "1366")
    rows = [" ".join(line.split()) for line in answer("plan", *options).splitlines()]
    assert "natural vLLM gain SGLang" in rows
    assert "requests of 1,366 104.83x 99.40x +5 % 15.00x" in rows
    pools = as_json("plan", *options)["sglang"]
    assert (pools["strategy"], pools["slots_per_request"]) == ("extra_buffer", 5)


def test_windows_have_a_pool_of_their_own() -> None:
    pools = as_json("plan", "gpt-oss-20b", "--memory", "24GiB")["sglang"]
    assert pools["window_tokens"] == int(pools["tokens"] * 0.8)
    assert pools["strategy"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("Jamba-1.5-Mini",), "jamba models are not planned for SGLang"),
        (("Qwen3.5-27B", "--pp", "2"), "pipeline stages are not planned for SGLang"),
        (("Qwen3.5-27B", "--kv-cache-dtype", "nvfp4"), "nvfp4 is not planned for SGLang"),
    ],
)
def test_a_plan_without_sglang_says_why(options: tuple[str, ...], told: str) -> None:
    out = answer("plan", *options, "--memory", "40GiB", "--max-model-len", "4k")
    assert told in out
