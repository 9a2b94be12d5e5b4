"""States that kernels write from inside a forward, at places which a prompt is cached up to.

vLLM calls them internal prefill checkpoints. Follows ``get_prefill_checkpoint_alignment`` and
``get_kv_cache_spec`` of the layers in ``vllm/model_executor/layers/mamba`` and ``vllm/models``
(0.33), with CUDA 13. Layers that are not named here, such as Mamba-1, lightning attention and short
convolutions, write their state where the forward ends.
"""

from math import lcm
from typing import Final

from hybrid_blocks.geometry.card import capability
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import FLASHINFER_TOKENS
from hybrid_blocks.model import Model
from hybrid_blocks.model.layer import GatedDeltaNet, KimiDeltaAttention, Mamba2, State

_FLASHKDA_TOKENS: Final = 16
_KERNEL_DIM: Final = 128
"""Numbers of a head that FlashKDA takes, and FlashInfer's GDN kernel on Blackwell."""

_OTHER_KERNELS: Final = ("bamba", "olmo_hybrid", "plamo2")
"""Models whose layers have kernels of their own, or that no release with these states serves."""


def alignment(model: Model, deployment: Deployment) -> int | None:
    """Tokens between the places at which states can be written; None if a layer writes none.

    Raises:
        PlanError: a card that is not known.

    """
    if deployment.card is None or deployment.mamba_cache_mode != "align":
        return None
    if model.model_type in _OTHER_KERNELS:
        return None
    states = {layer.cache for layer in model.layers if isinstance(layer.cache, State)}
    found = [_of(cache, model, deployment) for cache in states]
    if not found or None in found:
        return None
    return lcm(*filter(None, found))


def _of(cache: State, model: Model, deployment: Deployment) -> int | None:
    release, major, minor = deployment.release, *capability(deployment.card)
    match cache:
        case Mamba2() if release >= (0, 32):
            return 1
        case GatedDeltaNet() if release >= (0, 33):
            is_hopper = (major, minor) == (9, 0)
            is_blackwell = major in (10, 12) and cache.key_dim == _KERNEL_DIM
            is_chosen = deployment.gdn_prefill_backend in ("auto", "flashinfer")
            return FLASHINFER_TOKENS if is_chosen and (is_hopper or is_blackwell) else None
        case KimiDeltaAttention(flash=True) if release >= (0, 31):
            is_chosen = deployment.kda_prefill_backend in ("auto", "flashkda")
            takes = cache.head_dim == _KERNEL_DIM and model.dtype == "bfloat16"
            return _FLASHKDA_TOKENS if is_chosen and takes and major in (9, 10, 12) else None
        case _:
            return None
