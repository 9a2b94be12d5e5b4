"""Capacities that real vLLM deployments logged at start, reproduced.

The rows are facts from public engine logs. Logged GiB are rounded to two digits. A row is met if a
memory that rounds to the same GiB gives exactly the logged tokens and digits of the concurrency.
Rows without GiB carry the number of blocks that was solved from the other figures. Rows that count
blocks are of releases that logged another token capacity, and held one batch.

Not reproduced, and why: rows without tokens or without a model that is known (MiMo-V2.5,
Nemotron-3-Puzzle, DeepSeek-V4-Flash); Gemma-4 with a drafter, whose batch size is not logged; 4,096
tokens would give whole blocks for both rows, but 14.83 GiB where 14.84 are logged; Gemma-4 with
"~55k" tokens in "~50 GB"; a drafter with groups of its own (DFlash); gpt-oss-120b, which failed to
start or logged no tokens; 614 state slots on an H100, for which no memory is given.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment, VllmPlan, plan_vllm

ROWS = json.loads((Path(__file__).parent / "logged_capacity.json").read_text())
HALF_A_DIGIT = 0.005 * 2**30


def _plans(row: dict[str, Any]) -> list[VllmPlan]:
    """Plans for every number of blocks that agrees with the logged memory."""
    model, deployment = load_model(row["model"]), Deployment(**row["deployment"])
    probe = plan_vllm(model, 24 * 2**30, deployment)
    if "blocks" in row:
        counts = range(row["blocks"], row["blocks"] + 1)
    else:
        fewest = int(row["gib"] * 2**30 - HALF_A_DIGIT) // probe.block_bytes
        most = int(row["gib"] * 2**30 + HALF_A_DIGIT) // probe.block_bytes
        counts = range(fewest, most + 1)
    return [plan_vllm(model, count * probe.block_bytes, deployment) for count in counts]


def _tokens(plan: VllmPlan) -> int:
    return plan.tokens


def _tokens_of_blocks(plan: VllmPlan) -> int:
    """Return what releases up to 0.20.0 logged: as if all groups grew with the request."""
    smallest = min(group.spec.block_tokens for group in plan.groups)
    return plan.num_blocks // len(plan.groups) * smallest


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row.get('tokens')}")
def test_a_logged_row_is_reproduced_to_the_token(row: dict[str, Any]) -> None:
    plans = _plans(row)
    if "block" in row:
        assert {plan.block_tokens for plan in plans} == {row["block"]}
    if "tokens" in row:
        tokens = _tokens_of_blocks if row.get("counts") == "blocks" else _tokens
        met = [plan for plan in plans if tokens(plan) == row["tokens"]]
        assert met, [tokens(plan) for plan in plans]
        if "concurrency" in row:
            assert row["concurrency"] in {round(plan.max_concurrency, 2) for plan in met}


def test_the_padding_of_qwen_with_two_draft_tokens_is_the_logged_one() -> None:
    plan = plan_vllm(load_model("Qwen3.5-27B"), 2**34, Deployment(tp=2, num_speculative_tokens=2))
    state = next(group.spec for group in plan.groups if group.spec.kind == "mamba")
    assert round(100 * (state.page_bytes / state.unpadded_bytes - 1), 2) == 0.88
    assert plan.padding_layers == 3
