"""Architectures that the planner does not read yet, and why."""

from typing import Final

_LATENTS: Final = (
    "the planner has no kind for latents of 4 or 128 tokens (vLLM's MLAAttentionSpec with "
    "tokens_per_state), and none for windows over latents (SlidingWindowMLASpec)"
)
_COMPRESSED: Final = (
    "the planner has no kind for keys of several tokens (vLLM's tokens_per_state) beside a ring of "
    "those before them (CircularBufferSpec)"
)
_ENCODER: Final = "cross attention keeps an encoder's output, whose length no config.json says"
_INDEXER: Final = "an indexer keeps a cache of its own beside the latent, which is not counted yet"
_KEYS: Final = "an indexer keeps keys of its own beside keys and values, which are not counted yet"
_RING: Final = "convolutions keep a ring of tokens beside attention, which is not counted yet"
_HEARS: Final = "its encoder of sound keeps a cache too, which is not counted yet"
_PROMPT: Final = "tokens behind the window are kept for the prompt alone, which is not counted"

REASONS: Final = {
    "PanguProMoE": "sink tokens keep blocks of their own, which are not counted yet",
    "cohere_asr": _ENCODER,
    "deepseek_v4": _LATENTS,
    "deepseek_v41": _LATENTS,
    "dots3_note": "windows over latents are not counted yet",
    "glm5_next_text": _COMPRESSED,
    "hy_v4": _INDEXER,
    "inkling_model": _RING,
    "inkling_text": _RING,
    "minimax_m3_text": _KEYS,
    "minimax_m3_vl_text": _KEYS,
    "mbart": _ENCODER,
    "muse_spark_text": "no configuration of this family was compared with vLLM",
    "nemotron_parse": _ENCODER,
    "nemotron_parse3_5": _ENCODER,
    "step5": _COMPRESSED,
    "unlimited-ocr": _PROMPT,
    "unlimited_ocr": _PROMPT,
    "voxtral_realtime": _HEARS,
    "voxtral_realtime_text": _HEARS,
    "whisper": _ENCODER,
}
"""Reason by ``model_type``."""
