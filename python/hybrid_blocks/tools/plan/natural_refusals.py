"""Properties of a model, or of its split, that keep vLLM from running it at level ``natural``."""

from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import reads_dense_runs
from hybrid_blocks.model import Model
from hybrid_blocks.model.layer import CrossAttention, State
from hybrid_blocks.reasons import sentence


def natural_refusals(model: Model, deployment: Deployment) -> list[str]:
    """Return all reasons. A plan of slabs for such an engine holds for the replay only.

    ``deployment.level_refusal`` is the last one, where there is one.
    """
    caches = [layer.cache for layer in model.layers]
    kinds = {cache.kind for cache in caches}
    rank = deployment.rank(model)
    shapes = {
        tuple(tensor.shape for tensor in cache.tensors(rank))
        for cache in caches
        if isinstance(cache, State)
    }
    refused = {
        "cache_kind": CrossAttention.kind in kinds,
        "no_attention": kinds == {State.kind},
        "dense_run": reads_dense_runs(model, deployment),
        "state_shapes": len(shapes) > 1,
        "compressed": model.index is not None,
        "sparse_latent": any(getattr(cache, "sparse", False) for cache in caches),
    }
    named = [sentence(key, kind="CrossAttention") for key, holds in refused.items() if holds]
    return [*named, *filter(None, (deployment.level_refusal,))]
