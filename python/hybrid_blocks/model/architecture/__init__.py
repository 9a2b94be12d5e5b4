"""From ``config.json`` to a list of layers: one reader for each family of architectures."""

from typing import Final

from hybrid_blocks.model.architecture import (
    deepseek,
    falcon,
    gemma,
    granite,
    jamba,
    kimi,
    lfm,
    ling,
    llama,
    mimo,
    minimax,
    nemotron,
    plamo,
    qwen,
    recurrent_gemma,
    step,
    zamba,
)
from hybrid_blocks.model.architecture.common import Reader

READERS: Final[dict[str, Reader]] = {
    **dict.fromkeys(
        (
            "qwen3_next",
            "qwen3_5",
            "qwen3_5_text",
            "qwen3_5_moe",
            "qwen3_5_moe_text",
            "qwen4_exp",
            "qwen4_exp_text",
        ),
        qwen.read,
    ),
    "olmo_hybrid": qwen.read_olmo_hybrid,
    "jamba": jamba.read,
    "nemotron_h": nemotron.read,
    "nemotron_h_puzzle": nemotron.read,
    "granitemoehybrid": granite.read,
    "bamba": granite.read,
    "falcon_h1": falcon.read,
    "zamba2": zamba.read,
    "kimi_linear": kimi.read,
    "kimi_k3": kimi.read,
    "bailing_hybrid": ling.read_v3,
    "bailing_moe_v3": ling.read_v3,
    "bailing_moe_linear": ling.read_v2_5,
    "bailing_moe_v2_5": ling.read_v2_5,
    "minimax": minimax.read,
    "minimax_m1": minimax.read,
    "minimax_text_01": minimax.read,
    "recurrent_gemma": recurrent_gemma.read,
    "lfm2": lfm.read,
    "lfm2_moe": lfm.read,
    "plamo2": plamo.read,
    "gemma2": gemma.read_gemma2,
    **dict.fromkeys(("gemma3", "gemma3_text"), gemma.read_gemma3),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), gemma.read_gemma3n),
    **dict.fromkeys(
        ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"), gemma.read_gemma4
    ),
    **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), mimo.read),
    **dict.fromkeys(("step3p5", "step3p7"), step.read),
    **dict.fromkeys(("qwen2", "qwen3"), llama.read_qwen2),
    "qwen2_moe": llama.read_qwen2_moe,
    "exaone4": llama.read_exaone4,
    "olmo3": llama.read_olmo3,
    "gpt_oss": llama.read_gpt_oss,
    **dict.fromkeys(("llama4", "llama4_text"), llama.read_llama4),
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "mistral3",
            "ministral",
            "ministral3",
            "mixtral",
            "qwen3_moe",
            "phi3",
            "granite",
            "granitemoe",
            "gemma",
            "olmo2",
            "smollm3",
            "starcoder2",
        ),
        llama.read,
    ),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "kimi_vl"), deepseek.read
    ),
}
"""Reader for each ``model_type``."""

__all__ = ["READERS", "Reader"]
