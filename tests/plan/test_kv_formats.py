"""Formats of keys and values: the one that a checkpoint names, and all that vLLM takes."""

import json
from pathlib import Path

import pytest
from hybrid_blocks.model import Model, PlanError, formats, from_config, load_model, table
from hybrid_blocks.tools.plan import Deployment, plan_natural, plan_vllm

FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
IN_CONFIG: dict[str, dict[str, object]] = {
    "ModelOpt scheme": {**MODELOPT, "kv_cache_scheme": FP8},
    "ModelOpt name": {**MODELOPT, "kv_cache_quant_algo": "FP8"},
    "ModelOpt mixed": {**MODELOPT, "quant_method": "modelopt_mixed", "kv_cache_quant_algo": "fp8"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "kv_cache_scheme": FP8},
    "of older name": {"quant_method": "compressed_tensors", "kv_cache_scheme": FP8},
}
LEGACY = {
    "producer": {"name": "modelopt", "version": "0.29"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
}


def _qwen(quantization: object, **around: object) -> Model:
    fields, _ = table.fields(table.entries()["Qwen3.5-27B"])
    return from_config({**fields, "quantization_config": quantization, **around}, "Qwen3.6-27B")


def _is_planned_in_fp8(model: Model) -> None:
    plan = plan_vllm(model, int(47.84 * 2**30), Deployment(max_model_len=262_144))
    assert plan.block_tokens == 1568
    assert plan.tokens == 1_505_068
    assert round(plan.max_concurrency, 2) == 5.74


@pytest.mark.parametrize("place", IN_CONFIG)
def test_auto_is_the_format_that_the_checkpoint_names(place: str) -> None:
    _is_planned_in_fp8(_qwen(IN_CONFIG[place]))


def test_an_older_checkpoint_names_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    fields, _ = table.fields(table.entries()["Qwen3.5-27B"])
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert load_model(str(tmp_path)).kv_cache_dtype is None
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(LEGACY))
    _is_planned_in_fp8(load_model(str(tmp_path)))
    _is_planned_in_fp8(load_model(str(tmp_path / "config.json")))


def test_a_scheme_in_the_section_of_the_decoder_counts() -> None:
    model = from_config(
        {
            "model_type": "qwen3_5",
            "text_config": {"quantization_config": IN_CONFIG["compressed-tensors"]},
        },
        "inner",
    )
    assert model.kv_cache_dtype == "fp8"


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({**MODELOPT, "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({**MODELOPT, "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({**MODELOPT, "kv_cache_scheme": {**FP8, "dynamic": True}}, None),
        ({**MODELOPT, "kv_cache_scheme": {**FP8, "type": "int"}}, None),
        ({**MODELOPT, "kv_cache_quant_algo": "INT8"}, None),
        (MODELOPT, None),
        ({"quant_method": "fp8", "kv_cache_scheme": FP8}, None),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None),
        (None, None),
    ],
    ids=str,
)
def test_what_vllm_makes_of_other_names(quantization: object, named: str | None) -> None:
    assert _qwen(quantization).kv_cache_dtype == named


def test_a_scheme_that_vllm_refuses_is_refused() -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {**FP8, "num_bits": 4}}
    with pytest.raises(PlanError, match="kv_cache_scheme asks for 4 bits of type float"):
        _qwen(scheme)


def test_an_option_goes_before_the_checkpoint() -> None:
    model = _qwen(IN_CONFIG["ModelOpt scheme"])
    plan = plan_vllm(model, 2**35, Deployment(kv_cache_dtype="bfloat16"))
    assert plan.block_tokens == 784


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_4over6"])
def test_four_bits_with_scales_are_planned(name: str) -> None:
    deployment = Deployment(kv_cache_dtype=name, num_speculative_tokens=3, max_model_len=131_072)
    plan = plan_vllm(load_model("Qwen3.8-27B"), 5 * 2**30, deployment)
    assert plan.block_tokens == 2848
    assert plan.tokens == 202_950
    assert round(plan.max_concurrency, 2) == 1.55


@pytest.mark.parametrize("name", formats.KNOWN)
def test_every_format_is_planned_or_refused_with_a_reason(name: str) -> None:
    model, latent = load_model("Qwen3.5-27B"), load_model("DeepSeek-V3")
    deployment = Deployment(kv_cache_dtype=name, max_model_len=4096)
    plain = plan_natural(model, 2**36, Deployment(max_model_len=4096, kv_cache_dtype="float64"))
    if name in formats.LATENT_BLOBS:
        plan = plan_vllm(latent, 2**36, deployment)
        assert plan.block_bytes == 61 * 64 * formats.LATENT_BLOBS[name]
        with pytest.raises(PlanError, match="is a format of latent attention"):
            plan_vllm(model, 2**36, deployment)
        return
    assert plan_natural(model, 2**36, deployment).live_bytes(4096) <= plain.live_bytes(4096)
    assert plan_vllm(model, 2**36, deployment).num_blocks > 0


@pytest.mark.parametrize("name", ["nvfp4", "int8_per_token_head", "turboquant_4bit_nc"])
def test_latent_attention_takes_no_packed_format(name: str) -> None:
    with pytest.raises(PlanError, match="no kernel for latent attention takes it"):
        plan_vllm(load_model("DeepSeek-V3"), 2**36, Deployment(kv_cache_dtype=name))


def test_the_first_and_last_layers_stay_in_the_models_own_format() -> None:
    model = load_model("Granite-4.0-Micro")
    plan = plan_vllm(model, 2**35, Deployment(kv_cache_dtype="turboquant_4bit_nc"))
    (group,) = plan.groups
    pages = [member.spec.page_bytes // plan.block_tokens for member in group.members]
    assert pages == [2048, 2048, *[8 * (34 + 36)] * 36, 2048, 2048]


def test_windows_beside_layers_of_another_format_are_refused_by_name() -> None:
    with pytest.raises(PlanError, match="turboquant_4bit_nc beside windows"):
        plan_vllm(load_model("Gemma-3-27B"), 2**36, Deployment(kv_cache_dtype="turboquant_4bit_nc"))
