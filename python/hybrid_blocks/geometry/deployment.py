"""Options that decide cache sizes, with vLLM's names and meanings, and the stages of a pipeline."""

from typing import Final, Literal

import msgspec

from hybrid_blocks.model import Layer, Model, PlanError, Rank, formats
from hybrid_blocks.model.layer import RUNNING, StateFormat

DEFAULT_MAX_MODEL_LEN: Final = 131_072
"""Assumed where neither the user nor the model's config says how long a request may be."""

MAX_DRAFT_TOKENS: Final = 128
"""Draft tokens that vLLM's rejection sampler takes, ``MAX_SPEC_LEN`` there."""

MOST: Final = 2**31 - 1
"""The largest count that vLLM's tensors hold."""

RELEASE: Final = (0, 33)
"""vLLM's release that is planned."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one deployment.

    ``block_size`` is None where the default of each plan is wanted, and ``attention_backend`` where
    vLLM picks one. ``in_flight_batches`` is the
    number of batches of ``max_num_batched_tokens`` whose tokens a bounded group must hold at once;
    None is one more than there are pipeline stages, as vLLM counts on a GPU. Its CPU engine counts
    one for each stage. ``pp_partition`` counts the layers of each stage, None as vLLM deals them.
    ``checkpoint_format`` is that of kept states at level ``natural``. ``level_refusal`` is an
    option that changes no size but keeps vLLM from running at that level, such as a KV connector.

    ``card`` is one of those of ``--gpu``, or ``CPU``; vLLM chooses its kernels by it. None is a
    card whose kernels write no state from inside a forward. ``release`` is vLLM's: earlier ones
    size blocks in other ways.
    """

    tp: int = 1
    pp: int = 1
    kv_cache_dtype: str = "auto"
    mamba_ssm_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    num_speculative_tokens: int = 0
    mamba_cache_mode: Literal["none", "align"] = "align"
    block_size: int | None = None
    attention_backend: str | None = None
    gdn_prefill_backend: str = "auto"
    kda_prefill_backend: str = "auto"
    card: str | None = None
    release: tuple[int, int] = RELEASE
    in_flight_batches: int | None = None
    level_refusal: str | None = None
    pp_partition: tuple[int, ...] | None = None
    checkpoint_format: StateFormat = RUNNING

    def __post_init__(self) -> None:
        for option in ("tp", "pp", "max_num_batched_tokens", "max_num_seqs"):
            _positive(option, getattr(self, option))
        for option in ("max_model_len", "block_size", "in_flight_batches"):
            if getattr(self, option) is not None:
                _positive(option, getattr(self, option))
        if self.mamba_cache_mode not in ("none", "align"):
            raise PlanError(f"--mamba-cache-mode must be none or align: {self.mamba_cache_mode!r}")
        if self.kv_cache_dtype != "auto":
            formats.canonical(self.kv_cache_dtype)
        if self.mamba_ssm_dtype != "auto":
            formats.canonical_dtype(self.mamba_ssm_dtype)

    def rank(self, model: Model) -> Rank:
        """Describe one rank of the deployment."""
        return Rank(
            tp=self.tp,
            num_speculative_tokens=self.num_speculative_tokens,
            model_dtype=model.dtype,
            kv_dtype=self.kv_dtype(model),
            ssm_dtype=self.mamba_ssm_dtype,
            rotary_share=model.rotary_share,
        )

    def kv_dtype(self, model: Model) -> str:
        """Return the format of keys and values: ``auto`` is the checkpoint's, or the model's."""
        if self.kv_cache_dtype == "auto":
            return model.kv_cache_dtype or model.dtype
        return formats.canonical(self.kv_cache_dtype)

    def rank_of(self, layer: Layer, model: Model) -> Rank:
        """Describe one rank for one layer: some formats leave out the first and last layers."""
        rank = self.rank(model)
        if model.is_hybrid or not formats.spares_boundary_layers(rank.kv_dtype):
            return rank
        spared = min(formats.BOUNDARY_LAYERS, model.num_layers // 2)
        if spared <= layer.depth < model.num_layers - spared or layer.draft:
            return rank
        return msgspec.structs.replace(rank, kv_dtype=model.dtype)

    def length(self, model: Model) -> int:
        """Return the longest request: ``--max-model-len``, else the model's own, else a default."""
        return self.max_model_len or model.max_model_len or DEFAULT_MAX_MODEL_LEN

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that may be scheduled and not yet settled.

        Blocks behind a window are freed after a step, so a bounded group holds these tokens
        besides its window.
        """
        return (self.in_flight_batches or self.pp + 1) * self.max_num_batched_tokens


def _positive(option: str, value: int) -> None:
    if value < 1:
        raise PlanError(f"--{option.replace('_', '-')} must be positive: {value}")
    if value > MOST:
        raise PlanError(f"--{option.replace('_', '-')} {value}: at most {MOST:,}")


def stages(
    model: Model, layers: tuple[Layer, ...], pp: int, partition: tuple[int, ...] | None = None
) -> tuple[tuple[Layer, ...], ...]:
    """Split layers by depth as vLLM does.

    ``partition`` counts the layers of each stage, as ``VLLM_PP_LAYER_PARTITION`` does. Without it,
    each stage gets ``num_layers // pp`` layers; what remains goes one each to the stages before the
    last, from the last but one backwards. Draft layers lie on the last stage.

    Raises:
        PlanError: more stages than layers, a partition of other stages or layers, or a stage whose
            layers keep nothing.
    """
    if pp > model.num_layers:
        raise PlanError(f"--pp {pp} exceeds the {model.num_layers} layers of {model.name}")
    sizes = [model.num_layers // pp] * pp
    for index in range(2, model.num_layers % pp + 2):
        sizes[-index] += 1
    if partition is not None:
        if len(partition) != pp or sum(partition) != model.num_layers or min(partition) < 1:
            raise PlanError(
                f"VLLM_PP_LAYER_PARTITION={','.join(map(str, partition))}: give {pp} numbers of "
                f"layers, one a stage, that sum up to the {model.num_layers} of {model.name}"
            )
        sizes = list(partition)
    ends = [sum(sizes[: stage + 1]) for stage in range(pp)]
    ends[-1] = max(layer.depth for layer in layers) + 1
    starts = [0, *ends[:-1]]
    cut = tuple(
        tuple(layer for layer in layers if start <= layer.depth < end)
        for start, end in zip(starts, ends, strict=True)
    )
    if not all(cut):
        raise PlanError(f"--pp {pp} leaves a stage of {model.name} without a cache")
    return cut
