"""What the page of a plan says in words."""

from typing import Final

from hybrid_blocks.model import Model
from hybrid_blocks.plan.report.report import Report
from hybrid_blocks.units import gib

_KINDS: Final = {
    "full": "full-attention",
    "sliding_window": "sliding-window",
    "chunked": "chunked-attention",
    "cross": "cross-attention",
    "mla": "latent-attention",
    "gated_delta_net": "Gated DeltaNet",
    "kda": "KDA",
    "mamba1": "Mamba-1",
    "mamba2": "Mamba-2",
    "lightning": "lightning-attention",
    "rg_lru": "RG-LRU",
    "short_conv": "short-convolution",
}
_SIZES: Final = {
    "verified": ", sizes verified",
    "partly verified": ", sizes partly verified",
    "unverified": ", sizes not verified",
}

LEVEL: Final = (
    "Level natural is vLLM with this package and HYBRID_BLOCKS=natural: attention and states share "
    "slabs of one memory, in blocks of their own sizes."
)


def name_text(model: Model) -> str:
    """Return a model's name; one that a file describes goes by its architecture."""
    if model.architecture is None or model.verified != "config":
        return model.name
    return f"{model.architecture}, {model.num_layers} layers"


def layers_text(model: Model, report: Report) -> str:
    """Say how many layers there are of each kind, and where their sizes come from."""
    kinds = [f"{count} {_KINDS.get(kind, kind)}" for kind, count in report.layers.items()]
    listed = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    source = "" if name_text(model) == model.name else f", read from {model.name}"
    return f"{listed} layers{_SIZES.get(report.verified, source)}"


def deployment_text(report: Report, card: str | None) -> str:
    """Say for which memory and options the plan is; an estimate of the memory names its card."""
    deployment = report.deployment
    estimated = "" if card is None else f" (estimate for {card})"
    drafts = deployment.num_speculative_tokens
    return (
        f"{gib(report.memory_bytes)} a GPU{estimated}, tp {deployment.tp}, pp {deployment.pp}, "
        f"KV {report.kv_cache_dtype}, max length {report.max_model_len:,}, "
        f"{drafts} speculative tokens"
    )
