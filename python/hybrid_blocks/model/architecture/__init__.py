"""From ``config.json`` to a list of layers: one reader for each family of architectures."""

from typing import Final

from hybrid_blocks.model.architecture import attention, heads, linear, mamba, window
from hybrid_blocks.model.architecture.common import Reader

READERS: Final[dict[str, Reader]] = {
    **dict.fromkeys(
        (
            *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
            *("qwen4_exp", "qwen4_exp_text", "minicpm_ocr"),
        ),
        linear.read_qwen,
    ),
    "olmo_hybrid": linear.read_olmo_hybrid,
    "jamba": mamba.read_jamba,
    "nemotron_h": mamba.read_nemotron,
    "nemotron_h_puzzle": mamba.read_nemotron,
    "granitemoehybrid": mamba.read_granite,
    "bamba": mamba.read_granite,
    "falcon_h1": mamba.read_falcon,
    "zamba2": mamba.read_zamba,
    "alice_ai": linear.read_alice,
    "kimi_linear": linear.read_kimi,
    "kimi_k3": linear.read_kimi,
    "bailing_hybrid": linear.read_ling_v3,
    "bailing_moe_v3": linear.read_ling_v3,
    "bailing_moe_linear": linear.read_ling_v2_5,
    "bailing_moe_v2_5": linear.read_ling_v2_5,
    "minimax": linear.read_minimax,
    "minimax_m1": linear.read_minimax,
    "minimax_text_01": linear.read_minimax,
    "recurrent_gemma": mamba.read_recurrent_gemma,
    "lfm2": linear.read_lfm,
    "lfm2_moe": linear.read_lfm,
    "plamo2": mamba.read_plamo,
    "gemma2": window.read_gemma2,
    **dict.fromkeys(("gemma3", "gemma3_text"), window.read_gemma3),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), window.read_gemma3n),
    **dict.fromkeys(
        ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "diffusion_gemma_text"),
        window.read_gemma4,
    ),
    **dict.fromkeys(("mimo_v2_flash", "mimo_v2", "mimovl"), window.read_mimo),
    **dict.fromkeys(("step3p5", "step3p7"), window.read_step),
    **dict.fromkeys(("qwen2", "qwen2_5_omni_text", "qwen3"), attention.read_qwen2),
    "qwen2_moe": attention.read_qwen2_moe,
    **dict.fromkeys(("exaone4", "exaone4_5", "exaone_moe"), attention.read_exaone4),
    "smollm3": attention.read_smollm3,
    "gpt_oss": attention.read_gpt_oss,
    **dict.fromkeys(("llama4", "llama4_text"), attention.read_llama4),
    **window.READERS,
    "falcon": heads.read_falcon,
    "RefinedWeb": heads.read_falcon,
    "RefinedWebModel": heads.read_falcon,
    "gpt_bigcode": heads.read_multi_query,
    "chatglm": heads.read_chatglm,
    "dbrx": heads.read_dbrx,
    "moondream3_text": heads.read_moondream,
    "step3_text": heads.read_step3,
    "minicpm3": heads.read_unfolded_latent,
    "nemotron-nas": heads.read_nemotron_nas,
    "iquestloopcoder": heads.read_loop_coder,
    "hrm_text": heads.read_hrm,
    "dory": heads.read_dory,
    "mamba": mamba.read_mamba1,
    "falcon_mamba": mamba.read_mamba1,
    "mamba2": mamba.read_mamba2,
    "longcat_flash": attention.read_longcat,
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), attention.read_sparse_latent),
    **dict.fromkeys(attention.PLAIN, attention.read_plain),
    **dict.fromkeys(
        (
            *("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2"),
            *("kimi_k25", "kimi_vl", "pangu_ultra_moe", "sarvam_mla"),
        ),
        attention.read_latent,
    ),
}
"""Reader for each ``model_type``."""

__all__ = ["READERS", "Reader"]
