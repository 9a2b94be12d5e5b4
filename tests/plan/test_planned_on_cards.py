"""The plan of a model with states is the one that vLLM's own model classes make on each card."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.model import PlanError, load_model
from hybrid_blocks.tools.plan import Deployment, plan_vllm
from hybrid_blocks.tools.plan.memory import on_cards, parse_cards
from hybrid_blocks.tools.read.command import read_command
from planned import KINDS, LAYOUTS, MEMORY, STEP_TOKENS, SWEEP, WITHOUT
from process import printed_by_python

HERE = Path(__file__).parent
RECORDED: list[dict[str, Any]] = json.loads((HERE / "planned_on_cards.json").read_bytes())
MAKE = HERE.parent / "architectures" / "planned.py"


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} on {row['tp']}x{row['card']}, {row['drafts']} drafts"


@pytest.mark.parametrize("row", RECORDED, ids=name_of)
def test_a_plan_on_a_card_is_vllms_own(row: dict[str, Any]) -> None:
    model = load_model(row["model"], WITHOUT.get(row["model"]))
    sizes = {"tp": row["tp"], "max_model_len": row["length"], "card": row["card"]}
    sizes |= {"max_num_batched_tokens": STEP_TOKENS, "num_speculative_tokens": row["drafts"]}
    deployment = Deployment(**sizes)
    if "error" in row:
        with pytest.raises(PlanError, match=f"--tp {row['tp']} does not divide"):
            plan_vllm(model, MEMORY, deployment)
        return
    plan = plan_vllm(model, MEMORY, deployment)
    assert plan.block_tokens == row["block_tokens"]
    assert plan.num_blocks == row["num_blocks"]
    assert plan.tokens == row["tokens"]
    assert plan.max_concurrency == row["concurrency"]


def test_figures_of_models_on_an_h100_are_those_that_vllm_logs_there() -> None:
    for name, length, block, tokens, concurrency in (
        ("Qwen3.5-27B", 16_384, 832, 266_663, 16.28),
        ("Nemotron-3-Nano-30B-A3B", 16_384, 2096, 1_639_219, 100.05),
        ("Qwen3.5-35B-A3B", 8192, 1088, 557_056, 68.0),
    ):
        h100 = Deployment(max_model_len=length, card="H100-80GB")
        plan = plan_vllm(load_model(name), MEMORY, h100)
        assert (plan.block_tokens, plan.tokens) == (block, tokens)
        assert round(plan.max_concurrency, 2) == concurrency


def test_every_kind_of_state_is_planned_on_every_card() -> None:
    planned = {(row["model"], row["card"]) for row in RECORDED if "error" not in row}
    assert planned >= {(name, card) for name in KINDS for card in LAYOUTS}


def build(folder: Path, card: str, *names: str, sweep: bool = False) -> list[dict[str, Any]]:
    """Let a process of its own plan; this one's vLLM may know another device."""
    out = folder / "planned.json"
    unset = ("VLLM_TARGET_DEVICE", "PYTHONHASHSEED")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"}
    options = ["--out", out, *["--sweep"] * sweep]
    printed_by_python(MAKE, card, *names, *options, env=environment, timeout=3600)
    rows: list[dict[str, Any]] = json.loads(out.read_bytes())
    return rows


@pytest.mark.vllm
@pytest.mark.parametrize("card", ["H100-80GB", "L40S"])
def test_some_models_are_planned_as_recorded(card: str, tmp_path: Path) -> None:
    rows = build(tmp_path, card, "Qwen3.5-27B")
    assert rows == [row for row in RECORDED if (row["model"], row["card"]) == ("Qwen3.5-27B", card)]


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("card", LAYOUTS)
def test_all_models_are_planned_as_recorded(card: str, tmp_path: Path) -> None:
    rows = build(tmp_path, card)
    assert rows == [row for row in RECORDED if row["card"] == card]


def words_of(row: dict[str, Any]) -> list[str]:
    """Return the command of a row: options as words."""
    words = ["vllm", "serve", row["model"], "--max-model-len", str(row["length"])]
    for name, value in ({"max_num_batched_tokens": STEP_TOKENS} | row["options"]).items():
        flag = name.replace("_", "-")
        if value is False:
            words.append(f"--no-{flag}")
        else:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in KINDS if name not in WITHOUT])
def test_a_command_with_any_option_is_planned_as_vllm_plans_it(name: str, tmp_path: Path) -> None:
    """Or refused: the planner knows no backend's blocks that vLLM alone can tell."""
    card = parse_cards("H100-80GB")
    rows = build(tmp_path, "H100-80GB", name, sweep=True)
    assert len(rows) == len(SWEEP)
    compared = []
    for row in rows:
        try:
            command = read_command(words_of(row), None, card)
            plan = plan_vllm(command.model, MEMORY, on_cards(command.deployment, card))
        except PlanError:
            continue
        if "error" not in row:
            found = (plan.block_tokens, plan.num_blocks, plan.tokens, plan.max_concurrency)
            told = tuple(row[it] for it in ("block_tokens", "num_blocks", "tokens", "concurrency"))
            assert found == told, row
            compared.append(row["options"])
    assert len(compared) > len(SWEEP) // 2, rows
