"""Records SGLang's pools for all built-in models: ``python tests/plan/sglang_figures.py``.

Run it where torch and transformers are, with SGLang's unpacked wheel on ``PYTHONPATH``::

    pip download --no-deps sglang==0.5.23 && unzip sglang-*.whl 'sglang/*' -d wheel
    PYTHONPATH=python:wheel python tests/plan/sglang_figures.py
"""

from pathlib import Path
from typing import Any, Final

import msgspec
from hybrid_blocks.model import load_model
from hybrid_blocks.model.table import entries, fields

RECORD: Final = Path(__file__).with_name("sglang_figures.json")
RELEASE: Final = "0.5.23"

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
    "lazy": {"mamba_radix_cache_strategy": "extra_buffer_lazy"},
    "no buffer": {"mamba_radix_cache_strategy": "no_buffer"},
    "ratio 0.3": {"mamba_full_memory_ratio": 0.3},
    "fp8, tp 2": {"kv_cache_dtype": "fp8", "tp": 2},
    "tp 8": {"tp": 8},
    "states in bfloat16": {"mamba_ssm_dtype": "bfloat16"},
    "speculating": {"draft_tokens": 4},
    "no prefix cache": {"disable_radix_cache": True},
    "unified": {"enable_unified_memory": True},
}
OF_STATES: Final = ("lazy", "no buffer", "ratio 0.3", "states in bfloat16", "no prefix cache")
MAX_RUNNING: Final = 256
GIB: Final = {"plain": (24, 80), "tp 8": (24,)}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the record; ``figures`` is None where SGLang refuses the case."""

    model: str
    case: str
    gib: int
    figures: dict[str, Any] | None


def read() -> list[Case]:
    """Return the recorded rows."""
    return msgspec.json.decode(RECORD.read_bytes(), type=list[Case])


def main() -> None:
    """Write the record."""
    import sglang_oracle as oracle  # noqa: PLC0415 -- needs SGLang

    rows = []
    for name, entry in entries().items():
        model = load_model(name)
        if model.model_type not in ARCHITECTURES or len(model.layers) < model.num_layers // 2:
            continue
        config = _filled(fields(entry)[0])
        draft_layers = len(model.draft_layers)
        for case, given in CASES.items():
            if case in OF_STATES and not model.is_hybrid:
                continue
            options = oracle.Options(
                max_running_requests=MAX_RUNNING, draft_layers=draft_layers, **given
            )
            for gib in GIB.get(case, (80,)):
                try:
                    figures = msgspec.to_builtins(oracle.sizes(config, options, gib * 2**30))
                except Exception as error:  # noqa: BLE001 -- SGLang refuses in many ways
                    print(f"{name}, {case}: {error!r}")
                    figures = None
                rows.append(Case(model=name, case=case, gib=gib, figures=figures))
    lines = b",\n".join(msgspec.json.encode(row) for row in rows)
    RECORD.write_bytes(b"[\n" + lines + b"\n]\n")
    print(f"{RECORD}: {len(rows)} rows")


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


if __name__ == "__main__":
    main()
