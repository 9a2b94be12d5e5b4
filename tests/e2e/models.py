"""Small hybrid models with random weights, written to disk as any model on the hub is.

The weights are drawn so that activations keep their scale from layer to layer: the logits then
differ enough between tokens that greedy decoding is decided by the prompt, not by rounding.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import torch
from rig import tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

BUILD = Path(__file__).parents[2] / "build" / "e2e"
_SETTINGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_COMMON: dict[str, Any] = _SETTINGS["common"]
MODELS: dict[str, dict[str, Any]] = _SETTINGS["kinds"]

# Tokens a step of the kinds that need a bound. The CPU build of vLLM cannot export a Mamba2 state
# from within a chunk; chunks of one block never ask it to.
TOKENS_PER_STEP = {"granitemoehybrid": 256}


def build(kind: str, folder: Path = BUILD, name: str = "", **settings: Any) -> Path:
    """Write the model of a kind into ``folder`` unless it is there already; return its path.

    ``settings`` change its configuration, under another ``name``.
    """
    target = folder / (name or kind)
    if not (target / "model.safetensors").exists():
        # Gemma multiplies embeddings by the root of the hidden size: they would drown the context.
        embedding = _COMMON["hidden_size"] ** -0.5 if kind == "gemma3_text" else 1.0
        weights = _make(kind, target, _COMMON | MODELS[kind] | settings, embedding=embedding)
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def build_with_draft_head() -> Path:
    """As `build`, a Qwen3-Next with a layer that predicts the next token but one (MTP).

    The head follows from the token alone. Embeddings three times as large make the model's own
    tokens depend more on the last one than usual: one draft in five is right.
    """
    target = BUILD / "qwen3_next_mtp"
    if (target / "model.safetensors").exists():
        return target
    weights = _make("qwen3_next", target, _COMMON | MODELS["qwen3_next"], embedding=3.0)
    last = f"model.layers.{MODELS['qwen3_next']['num_hidden_layers'] - 1}."
    own = {name: weight for name, weight in weights.items() if name.startswith(last)}
    head = {name.replace(last, "mtp.layers.0."): it.clone() for name, it in own.items()}
    norm = weights["model.norm.weight"]
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        head[f"mtp.{name}.weight"] = norm.clone()
    (size,) = norm.shape
    # The head passes the embedding through, and ignores the model's hidden state.
    head["mtp.fc.weight"] = torch.eye(size, 2 * size).to(norm.dtype)
    save_file(weights | head, target / "model.safetensors", metadata={"format": "pt"})
    return target


def build_with_images() -> Path:
    """As `build`, a model like Qwen3.5: linear attention, full attention and a vision tower.

    An image of 64 by 96 pixels is six tokens between ``<|vision_start|>`` and ``<|vision_end|>``.
    """
    target = BUILD / "qwen3_5"
    if (target / "model.safetensors").exists():
        return target
    ids = {token: 256 + index for index, token in enumerate(tokenizer.SPECIAL)}
    linear = MODELS["qwen3_next"]
    text: dict[str, Any] = _COMMON | {
        name: linear[name]
        for name in linear
        if name.startswith(("linear", "num_hidden", "intermediate", "full_attention"))
    }
    text |= {
        "dtype": "bfloat16",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    patches = {"patch_size": 16, "temporal_patch_size": 2}
    vision = patches | {"depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2}
    vision |= {"out_hidden_size": text["hidden_size"], "num_position_embeddings": 64}
    settings = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "dtype": "bfloat16",
        "max_position_embeddings": text["max_position_embeddings"],
        "text_config": text,
        "vision_config": vision,
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    weights = _make("qwen3_5", target, settings, AutoModelForImageTextToText)
    reader: dict[str, Any] = patches | {
        "processor_class": "Qwen3VLProcessor",
        "merge_size": 2,
        "size": {"shortest_edge": 2**10, "longest_edge": 2**16},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    for name, own in {
        "preprocessor_config": {"image_processor_type": "Qwen2VLImageProcessor"},
        "video_preprocessor_config": {"video_processor_type": "Qwen3VLVideoProcessor"},
    }.items():
        (target / f"{name}.json").write_text(json.dumps(reader | own, indent=1))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def build_adapter(model: Path, number: int) -> Path:
    """Write a LoRA adapter of a model's queries and values beside it; return its path."""
    target = model / f"adapter-{number}"
    if (target / "adapter_model.safetensors").exists():
        return target
    target.mkdir(exist_ok=True)
    torch.manual_seed(number)
    rank = 8
    adapted = ("q_proj", "v_proj")
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(adapted):
            outputs, inputs = weight.shape
            prefix = f"base_model.model.{module}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(rank, inputs) / inputs**0.5
            weights[f"{prefix}.lora_B.weight"] = torch.randn(outputs, rank) / rank**0.5
    settings: dict[str, Any] = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    settings |= {"target_modules": adapted, "bias": "none"}
    (target / "adapter_config.json").write_text(json.dumps(settings))
    save_file(weights, target / "adapter_model.safetensors", metadata={"format": "pt"})
    return target


def _make(
    kind: str,
    target: Path,
    settings: dict[str, Any],
    model_class: Any = AutoModelForCausalLM,
    *,
    embedding: float = 1.0,
) -> dict[str, torch.Tensor]:
    """Write configuration and tokenizer of a model; return its weights."""
    target.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, settings["dtype"])
    config = AutoConfig.for_model(kind, **settings)
    torch.manual_seed(20)
    model = model_class.from_config(config, dtype=torch.float32)
    drawn = model.state_dict().items()
    weights = {name: _scaled(name, weight, embedding).to(dtype) for name, weight in drawn}
    config.save_pretrained(target)
    fixed = {key: settings[key] for key in ("architectures", "dtype")}
    saved = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(saved | fixed, indent=1))
    tokenizer.write(target, max_length=settings["max_position_embeddings"])
    return weights


def _scaled(name: str, weight: torch.Tensor, embedding: float) -> torch.Tensor:
    if "embed_tokens" in name:
        return torch.randn_like(weight) * embedding
    if weight.dim() < 2:
        return weight.contiguous()
    fan_in = weight[0].numel() if "conv1d" in name else weight.shape[-1]
    gain = 4.0 if "lm_head" in name else 1.0
    scaled: torch.Tensor = torch.randn_like(weight) * gain / fan_in**0.5
    return scaled.contiguous()


if __name__ == "__main__":
    print(build(sys.argv[1], Path(sys.argv[2])))
