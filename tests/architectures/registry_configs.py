"""A configuration for each architecture of vLLM's registry that generates text.

Where transformers or vLLM has a class, its own defaults are taken and only ``model_type`` is
written. Where code of the publisher defines the class, the fields are written as published.
"""

import json
from pathlib import Path
from typing import Any

Fields = dict[str, Any]

PUBLISHED = Path(__file__).parent / "published.json"
"""Fields of architectures without a class, and ``model_type`` where the class has another name."""


def rows() -> dict[str, Fields]:
    """Return the configuration of every architecture."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - imports torch
    from vllm.model_executor.models import registry  # noqa: PLC0415

    types: dict[str, str] = {}
    for mapping in dir(modeling_auto):
        if mapping.endswith("MAPPING_NAMES"):
            for model_type, classes in getattr(modeling_auto, mapping).items():
                for name in classes if isinstance(classes, tuple) else (classes,):
                    types.setdefault(name, model_type)
    published = json.loads(PUBLISHED.read_bytes())
    names = {
        **registry._TEXT_GENERATION_MODELS,
        **registry._MULTIMODAL_MODELS,
        **registry._TRANSFORMERS_SUPPORTED_MODELS,
    }
    found: dict[str, Fields] = {}
    for name in sorted(names):
        fields = published.get(name) or {"model_type": types[name]}
        found[name] = {"architectures": [name], **fields}
    return found


def model_types() -> set[str]:
    """Return the type of every configuration."""
    return {str(fields["model_type"]) for fields in rows().values()}


HEADS = (
    *("BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM"),
    *("BailingMoeV3VLForConditionalGeneration", "DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM"),
    *("Ernie4_5_MoeForCausalLM", "ExaoneMoeForCausalLM", "Glm4MoeForCausalLM"),
    *("Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM", "GlmOcrForConditionalGeneration"),
    *("KimiK3ForConditionalGeneration", "LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM"),
    *("MiMoForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM"),
    *("NemotronHForCausalLM", "NemotronH_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3"),
    *("PanguUltraMoEForCausalLM", "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM"),
    *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    *("Qwen3_5MoeForConditionalGeneration", "Qwen4ExpForCausalLM"),
    *("Qwen4ExpForConditionalGeneration", "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
)
"""Architectures whose head for multi-token prediction vLLM builds."""

_OWN = ("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration")
"""The class itself has a head."""

_IN_SECTION = ("GlmOcrForConditionalGeneration", "KimiK3ForConditionalGeneration")
"""The decoder's class stands within another, and the configuration names no field of it."""


def with_head(name: str, fields: Fields) -> Fields:
    """Return a configuration with a head of one layer, where its class has none by itself."""
    if name in _OWN:
        return fields
    head: Fields = {"num_nextn_predict_layers": 1}
    if name.startswith("NemotronH"):
        head["mtp_hybrid_override_pattern"] = "*E"
    named = [section for section in ("text_config", "llm_config") if section in fields]
    sections = ["text_config"] if name in _IN_SECTION else named
    within = {section: {**fields.get(section, {}), **head} for section in sections}
    return {**fields, **head, **within}
