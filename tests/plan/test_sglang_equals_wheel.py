"""The plan of SGLang's pools equals what the functions of SGLang's own wheel return.

`make build/sglang` unpacks the wheel, without what it depends on.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.model.table import entries, fields
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.sglang import SERVED, plan_sglang

HERE: Final = Path(__file__).parent
WHEEL: Final = HERE.parents[1] / "build/sglang"
MAX_RUNNING: Final = 256

ARCHITECTURES: Final = {
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "granite": "GraniteForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "bailing_hybrid": "BailingMoeV3ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k3": "KimiK3ForConditionalGeneration",
    "bailing_moe_linear": "BailingMoeV2_5ForCausalLM",
    "gemma4_text": "Gemma4ForConditionalGeneration",
    "llama4_text": "Llama4ForConditionalGeneration",
}
"""SGLang's class for each type of the built-in table."""

AROUND: Final = {"kimi_k3": "kimi_k3", "gemma4_text": "gemma4", "llama4_text": "llama4"}
"""Types whose decoder stands in ``text_config``, and the type around it."""

OTHER_NAMES: Final = {"kimi_k3": "kimi_linear", "bailing_moe_linear": "bailing_hybrid"}
"""What SGLang's classes call some types."""

CASES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "fp8, tp 2": {"kv_cache_dtype": "fp8", "tp": 2},
    "tp 8": {"tp": 8},
    "states in bfloat16": {"mamba_ssm_dtype": "bfloat16"},
    "speculating": {"draft_tokens": 4},
    "no prefix cache": {"disable_radix_cache": True},
}
OF_STATES: Final = ("states in bfloat16", "no prefix cache")
GIB: Final = {"plain": (24, 80), "tp 8": (24,)}

DO_NOT_DIVIDE: Final = (
    *("Falcon-H1-7B", "Falcon-H1-34B", "Falcon-H1-3B"),
    *("Granite-4.0-H-Tiny", "Granite-4.0-H-1B", "Phi-4"),
)
"""Heads of these do not divide by 8; SGLang finds out when it loads them."""


@pytest.mark.full
def test_all_models_and_options_equal_sglangs_own_functions() -> None:
    assert WHEEL.is_dir(), "make build/sglang"
    rows = list(_rows())
    assert len(rows) > 200
    answered = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "sglang_oracle.py")],
        input=msgspec.json.encode([question for _, _, question in rows]),
        env={**os.environ, "PYTHONPATH": str(WHEEL), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        check=False,
    )
    assert answered.returncode == 0, answered.stderr.decode()[-2000:]
    answers: list[dict[str, Any]] = msgspec.json.decode(answered.stdout)
    wrong = []
    for (model, case, question), theirs in zip(rows, answers, strict=True):
        ours = _planned(model, question)
        refused = theirs.pop("refusal")
        if ours is None:
            # Heads that do not divide are an error here before SGLang sees the weights.
            agree = refused is not None or (model.name in DO_NOT_DIVIDE and question["tp"] == 8)
        else:
            agree = ours == theirs
        if not agree:
            wrong.append((model.name, case, ours, refused or theirs))
    assert not wrong
    assert {model.model_type for model, *_ in rows} <= SERVED


def _rows() -> Iterator[tuple[Model, str, dict[str, Any]]]:
    for name, entry in entries().items():
        model = load_model(name)
        if model.model_type not in ARCHITECTURES or len(model.layers) < model.num_layers // 2:
            continue
        config = _filled(fields(entry)[0])
        for case, given in CASES.items():
            if case in OF_STATES and not model.is_hybrid:
                continue
            for gib in GIB.get(case, (80,)):
                question = {
                    "config": config,
                    "memory_bytes": gib * 2**30,
                    "max_running_requests": MAX_RUNNING,
                    "draft_layers": len(model.draft_layers),
                    "tp": 1,
                    **given,
                }
                yield model, case, question


def _planned(model: Model, question: dict[str, Any]) -> dict[str, Any] | None:
    deployment = Deployment(
        tp=question["tp"],
        kv_cache_dtype=question.get("kv_cache_dtype", "auto"),
        mamba_ssm_dtype=question.get("mamba_ssm_dtype", "auto"),
        num_speculative_tokens=max(question.get("draft_tokens", 0) - 1, 0),
        mamba_cache_mode="none" if question.get("disable_radix_cache") else "align",
        max_num_seqs=MAX_RUNNING,
    )
    try:
        plan = plan_sglang(model, question["memory_bytes"], deployment)
    except PlanError:
        return None
    return {
        "strategy": plan.strategy,
        "state_bytes": plan.state_bytes,
        "state_slots": plan.state_slots,
        "slots_per_request": plan.slots_per_request,
        "tokens": plan.tokens,
        "window_tokens": plan.window_tokens,
        "max_running": plan.max_running,
    }


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Write a pattern as the lists that SGLang's classes read, and widths that no cache has."""
    config = dict(fields)
    depths = range(config["num_hidden_layers"])
    for field, other in (("full_attn_idxs", "conv"), ("attn_layer_indices", "mamba")):
        if (full := config.get(field)) is not None and "layer_types" not in config:
            own = "attention" if other == "mamba" else "full_attention"
            config["layer_types"] = [own if depth in full else other for depth in depths]
    linear = config.get("linear_attn_config")
    if linear is not None and "kda_layers" not in linear:
        layers = [depth + 1 for depth in depths if depth + 1 not in linear["full_attn_layers"]]
        config["linear_attn_config"] = {**linear, "kda_layers": layers}
        config |= {"qk_nope_head_dim": 128, "v_head_dim": 128}
    if (pattern := config.get("sliding_window_pattern")) and "layer_types" not in config:
        is_full = [(depth + 1) % pattern == 0 or depth == depths[-1] for depth in depths]
        config["layer_types"] = [f"{'full' if full else 'sliding'}_attention" for full in is_full]
    return _wrapped(config)


def _wrapped(config: dict[str, Any]) -> dict[str, Any]:
    """Name SGLang's class, around the decoder where it wants one there."""
    model_type = config["model_type"]
    config["model_type"] = OTHER_NAMES.get(model_type, model_type)
    if model_type in AROUND:
        config = {"model_type": AROUND[model_type], "text_config": config, "dtype": "bfloat16"}
    return {**config, "architectures": [ARCHITECTURES[model_type]]}
