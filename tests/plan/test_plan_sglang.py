"""The plan of SGLang's pools, which equals what SGLang's own functions return."""

import json
from contextlib import suppress
from typing import Any

import pytest
import sglang_figures
from hybrid_blocks.cli import app
from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.plan import Deployment
from hybrid_blocks.plan.sglang import (
    SglangPlan,
    Unified,
    best_ratio,
    plan_sglang,
    plan_unified,
    strategies,
)
from hybrid_blocks.plan.sglang.plan import split
from typer.testing import CliRunner

MEMORY = 24 * 2**30
DO_NOT_DIVIDE = (
    *("Falcon-H1-7B", "Falcon-H1-34B", "Falcon-H1-3B"),
    *("Granite-4.0-H-Tiny", "Granite-4.0-H-1B", "Phi-4"),
)
"""Heads of these do not divide by 8; SGLang finds out when it loads them."""


def _deployment(case: str) -> Deployment:
    given = sglang_figures.CASES[case]
    drafts = given.get("draft_tokens", 0)
    return Deployment(
        tp=given.get("tp", 1),
        kv_cache_dtype=given.get("kv_cache_dtype", "auto"),
        mamba_ssm_dtype=given.get("mamba_ssm_dtype", "auto"),
        num_speculative_tokens=max(drafts - 1, 0),
        mamba_cache_mode="none" if given.get("disable_radix_cache") else "align",
        max_num_seqs=sglang_figures.MAX_RUNNING,
    )


def _planned(row: sglang_figures.Case, model: Model) -> dict[str, Any] | None:
    given = sglang_figures.CASES[row.case]
    buffer: dict[str, Any] = {}
    try:
        plan = plan_sglang(
            model,
            row.gib * 2**30,
            _deployment(row.case),
            strategy=given.get("mamba_radix_cache_strategy"),
            ratio=given.get("mamba_full_memory_ratio", 0.9),
        )
        if given.get("enable_unified_memory"):
            unified = plan_unified(plan, _deployment(row.case))
            plan, buffer = unified.split, _buffer(unified)
    except PlanError as error:
        if row.model in DO_NOT_DIVIDE and "does not divide" in str(error):
            return row.figures
        return None
    has_cache = row.case != "no prefix cache"
    return {
        "strategy": plan.strategy if has_cache else strategies(model.model_type)[0],
        "state_bytes": plan.costs.state_bytes,
        "state_slots": plan.state_slots,
        "slots_per_request": plan.slots_per_request,
        "tokens": plan.tokens,
        "window_tokens": plan.window_tokens,
        "max_running": plan.max_running,
        **buffer,
    }


def _buffer(unified: Unified) -> dict[str, Any]:
    others = (unified.split.state_slots or unified.split.window_tokens or 0) // 2
    return {
        "buffer": {
            "total_bytes": unified.total_bytes,
            "tokens": unified.tokens_beside(0),
            "others": others,
            "tokens_beside": unified.tokens_beside(others),
        }
    }


def test_all_models_and_options_equal_sglangs_own_functions() -> None:
    rows = sglang_figures.read()
    assert len(rows) > 300
    models = {name: load_model(name) for name in {row.model for row in rows}}
    assert [row for row in rows if _planned(row, models[row.model]) != row.figures] == []


def _qwen(strategy: Any = None, ratio: float = 0.9, **options: Any) -> SglangPlan:
    model = load_model("Qwen3.5-27B")
    return plan_sglang(model, MEMORY, Deployment(**options), strategy=strategy, ratio=ratio)


@pytest.mark.parametrize(
    ("strategy", "running", "best"),
    [("extra_buffer", 15, 29), ("extra_buffer_lazy", 19, 36), ("no_buffer", 26, 46)],
)
def test_slots_a_request_cap_what_runs_and_another_ratio_runs_more(
    strategy: Any, running: int, best: int
) -> None:
    plan = _qwen(strategy)
    assert plan.max_running == running
    assert plan.running(1366) == running
    assert int(best_ratio(plan, Deployment(), 1366).running(1366)) == best


def test_unified_memory_runs_more_long_requests_and_as_many_short_ones() -> None:
    plan = _qwen()
    unified = plan_unified(plan, Deployment())
    assert unified.running(1024) == plan.running(1024) == 15
    assert unified.running(16_384) > plan.running(16_384)
    assert unified.running(262_144) >= 1 > plan.running(262_144)
    with pytest.raises(PlanError, match="not planned with drafts"):
        plan_unified(plan, Deployment(num_speculative_tokens=2))
    dense = plan_sglang(load_model("Phi-4"), MEMORY, Deployment())
    with pytest.raises(PlanError, match="unified memory wants states, or windows"):
        plan_unified(dense, Deployment())


@pytest.mark.parametrize("options", [{}, {"num_speculative_tokens": 3}, {"max_num_seqs": 20}])
@pytest.mark.parametrize("length", [600, 9000])
def test_no_ratio_runs_more_than_the_best_one(length: int, options: dict[str, Any]) -> None:
    plan, deployment, most = _qwen(**options), Deployment(**options), 0
    for step in range(200, 80_000, 331):
        with suppress(PlanError):
            other = split(plan.costs, MEMORY, deployment, plan.strategy, step / 10_000)
            most = max(most, int(other.running(length)))
    assert int(best_ratio(plan, deployment, length).running(length)) >= most > 0


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_plan_shows_sglang_next_to_vllm() -> None:
    options = ("Qwen3.5-27B", "--memory", "24GiB", "--lengths", "1366")
    rows = [" ".join(line.split()) for line in _run(*options).splitlines()]
    assert "natural vLLM gain SGLang" in rows
    assert "requests of 1,366 104.83x 99.40x +5 % 15.00x" in rows
    assert not any(row.startswith("slots a request") for row in rows)
    rows = [" ".join(line.split()) for line in _run(*options, "--all").splitlines()]
    assert "slots a request 5 4 3" in rows
    assert "requests at it 29.00x 36.00x 46.00x" in rows


def test_windows_have_a_pool_of_their_own() -> None:
    report = json.loads(_run("gpt-oss-20b", "--memory", "24GiB", "--json", "-"))
    (pools,) = report["sglang"]["strategies"]
    assert pools["window_tokens"] == int(pools["tokens"] * 0.8)
    assert pools["strategy"] is None
    assert pools["lengths"][0]["best_ratio"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("Jamba-1.5-Mini",), "jamba models are not planned for SGLang"),
        (("Qwen3.5-27B", "--pp", "2"), "pipeline stages are not planned for SGLang"),
        (("Qwen3.5-27B", "--kv-cache-dtype", "nvfp4"), "nvfp4 is not planned for SGLang"),
    ],
)
def test_a_plan_without_sglang_says_why(options: tuple[str, ...], told: str) -> None:
    out = _run(*options, "--memory", "40GiB", "--max-model-len", "4k")
    assert told in out
