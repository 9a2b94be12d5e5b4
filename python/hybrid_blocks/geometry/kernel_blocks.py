"""Tokens of a block, or between states, that attention and recurrent kernels take."""

from typing import Final

KERNEL_BLOCK_TOKENS: Final = 16
"""Smallest block of CUDA's attention backends, and vLLM's default."""

LATENT_KERNEL_BLOCK_TOKENS: Final = 128
"""The grain for latent attention beside recurrent layers."""

LATENT_BLOCK_TOKENS: Final = 64
"""What latent attention backends ask for where no state is to be held (FlashMLA, TRT-LLM)."""

FLASHINFER_TOKENS: Final = 64
"""Tokens between the places at which FlashInfer's GDN kernel writes states."""
