"""Which models SGLang serves, and how many states of each running request it keeps."""

from typing import Final, Literal

from hybrid_blocks.plan.deployment import SglangStrategy

Strategy = Literal["extra_buffer", "extra_buffer_lazy", "no_buffer", "off"]
"""``--mamba-radix-cache-strategy``; off stands for ``--disable-radix-cache``."""

SLOTS: Final[dict[Strategy, int]] = {
    "extra_buffer": 5,
    "extra_buffer_lazy": 4,
    "no_buffer": 3,
    "off": 1,
}
"""State slots that a running request takes of the pool."""

_SPARE: Final = frozenset(
    {
        *("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"),
        *("falcon_h1", "nemotron_h", "granitemoehybrid"),
        *("kimi_linear", "kimi_k3", "bailing_hybrid", "bailing_moe_linear"),
    }
)
"""Models with states that take spare slots, as SGLang's scheduler wants by default."""

_PLAIN: Final = frozenset(
    {
        *("lfm2", "lfm2_moe"),
        *("granite", "gemma3_text", "mistral", "phi3", "deepseek_v3"),
        *("llama", "qwen2", "qwen3", "qwen3_moe"),
    }
)

WINDOWS_APART: Final = frozenset({"gpt_oss", "gemma4_text", "llama4_text"})
"""Models whose windows, or chunks, have a pool of their own."""

SERVED: Final = _SPARE | _PLAIN | WINDOWS_APART
"""Types of models whose pools were compared with SGLang's own arithmetic."""


STRATEGIES: Final[tuple[SglangStrategy, ...]] = ("extra_buffer", "extra_buffer_lazy", "no_buffer")


def strategies(model_type: str) -> tuple[SglangStrategy, ...]:
    """Strategies that a model with states can take, the default one first."""
    return STRATEGIES if model_type in _SPARE else ("no_buffer",)
