"""Tokens of a block, or between states, that attention and recurrent kernels take.

Follows ``_get_backend_priorities`` in ``vllm/platforms/cuda.py`` and the backends in
``vllm/v1/attention/backends`` (0.33).
"""

from types import MappingProxyType
from typing import Final

from hybrid_blocks.geometry.card import capability
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, formats
from hybrid_blocks.model.layer import Attention, LatentAttention

KERNEL_BLOCK_TOKENS: Final = 16
"""Smallest block of CUDA's attention backends, and vLLM's default."""

LATENT_KERNEL_BLOCK_TOKENS: Final = 128
"""The grain for latent attention beside recurrent layers."""

LATENT_BLOCK_TOKENS: Final = MappingProxyType(
    {
        "FLASH_ATTN_MLA": 16,
        "TRITON_MLA": 16,
        "FLASHINFER_MLA": 32,
        "TOKENSPEED_MLA": 32,
        "FLASHMLA": 64,
        "CUTLASS_MLA": 128,
    }
)
"""Block of each backend of latent attention where no state is to be held."""

DENSE_BLOCK_TOKENS: Final = MappingProxyType({"HPC_ATTN": 64, "B12X": 128})
"""Block of the backends of other attention that take none of 16 tokens."""

DENSE_RUNS: Final = ("FLEX_ATTENTION", "HPC_ATTN", "TURBOQUANT")
"""Backends whose kernels cannot read blocks of several layers side by side."""

_WIDE_HEAD, _WIDE_TOKENS = 256, 128
"""FlashAttention 4 takes heads of this size in blocks of this size, on cards such as a B200."""

_SPARSE_TOKENS: Final = 64
"""The block of an index, which all backends of sparse latent attention keep to."""

_LATENT_DIMS: Final = (320, 512, 576)
"""Numbers of a latent that all backends but Triton's ask for."""

FLASHINFER_TOKENS: Final = 64
"""Tokens between the places at which FlashInfer's GDN kernel writes states."""


def block_tokens(model: Model, deployment: Deployment) -> int:
    """Tokens of a block of attention. The deployment's backend decides, else its card.

    Without a card Triton's backend of latent attention counts, which runs on all cards.
    """
    if any(layer.cache.kind == LatentAttention.kind for layer in model.layers):
        return _latent_block_tokens(model, deployment)
    backend = (deployment.attention_backend or "").upper()
    if backend == "FLASH_ATTN" and capability(deployment.card)[0] == 10:
        attention = (it.cache for it in model.layers if isinstance(it.cache, Attention))
        if next(attention).head_dim == _WIDE_HEAD:
            return _WIDE_TOKENS
    return DENSE_BLOCK_TOKENS.get(backend, KERNEL_BLOCK_TOKENS)


def reads_dense_runs(model: Model, deployment: Deployment) -> bool:
    """Return whether the kernels that read keys and values need each layer's blocks as one run."""
    # TurboQuant's backend alone reads the formats that spare layers.
    is_packed = formats.spares_boundary_layers(deployment.kv_dtype(model))
    return is_packed or (deployment.attention_backend or "").upper() in DENSE_RUNS


def _latent_block_tokens(model: Model, deployment: Deployment) -> int:
    latents = [cache for it in model.layers if isinstance(cache := it.cache, LatentAttention)]
    kv_dtype = deployment.kv_dtype(model)
    if kv_dtype in formats.LATENT_BLOBS or any(cache.sparse for cache in latents):
        return _SPARSE_TOKENS
    asked = (deployment.attention_backend or "").upper()
    if asked in LATENT_BLOCK_TOKENS:
        return LATENT_BLOCK_TOKENS[asked]
    if any(cache.latent_dim not in _LATENT_DIMS for cache in latents):
        return LATENT_BLOCK_TOKENS["TRITON_MLA"]
    is_plain = kv_dtype == model.dtype
    match capability(deployment.card)[0]:
        case 9:
            return LATENT_BLOCK_TOKENS["FLASH_ATTN_MLA" if is_plain else "FLASHMLA"]
        case 10:
            return LATENT_BLOCK_TOKENS["FLASHINFER_MLA"]
        case _:
            return LATENT_BLOCK_TOKENS["TRITON_MLA"]
