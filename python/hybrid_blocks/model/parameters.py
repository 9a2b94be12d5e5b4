"""Parameters of a model, counted from its ``config.json``.

``embedding.json`` has the sizes of embeddings that a file leaves out. A test compares the record
with the configuration classes of transformers.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import (
    Attention,
    Cache,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    ShortConv,
)
from hybrid_blocks.model.model import Layer, Weights


class Embedding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of a vocabulary, and whether the output shares the matrix of the input."""

    vocab_size: int | None = None
    tie_word_embeddings: bool = False


def embedding_of(config: Config, model_type: str) -> Embedding:
    """Return the embeddings of a file; fields that it leaves out are those of its class."""
    default = _recorded().get(model_type, Embedding())
    return Embedding(
        vocab_size=config.optional("vocab_size") or default.vocab_size,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=default.tie_word_embeddings),
    )


@cache
def _recorded() -> dict[str, Embedding]:
    record = files("hybrid_blocks.model").joinpath("embedding.json").read_bytes()
    return msgspec.json.decode(record, type=dict[str, Embedding])


_GATED_ATTENTION: Final = ("qwen3_next", "qwen3_5", "qwen4_exp")
"""Types whose queries bring a gate of the output with them."""

_WIDTHS: Final = (
    "intermediate_size",
    "shared_intermediate_size",
    "block_ff_dim",
    "moe_intermediate_size",
)
"""Names of the width of a feed-forward network."""

_ONE_PART: Final = ("nemotron_h",)
"""Types in which a layer is a mixer or a feed-forward network, and its network has no gate."""


def count_parameters(config: Config, layers: tuple[Layer, ...], model_type: str) -> Weights:
    """Count large matrices; norms, biases, vision and draft layers are left out.

    Raises:
        PlanError: the file does not say how wide they are; names each field that is missing.
    """
    embedding = embedding_of(config, model_type)
    missing: tuple[str, ...] = () if embedding.vocab_size else ("vocab_size",)
    if config.optional("intermediate_size_mlp", *_WIDTHS) is None:
        missing += _WIDTHS[:1]
    config.require("hidden_size", *missing)
    hidden = config.positive("hidden_size")
    copies = 1 if embedding.tie_word_embeddings else 2
    mixers = sum(_mixer(config, layer.cache, hidden, model_type) for layer in layers)
    experts, dense = 0, mixers
    with_caches = {layer.depth for layer in layers}
    for depth in range(config.num_layers):
        if model_type.startswith(_ONE_PART) and depth in with_caches:
            continue
        of_experts, others = _network(config, depth, hidden, model_type)
        experts, dense = experts + of_experts, dense + others
    return Weights(
        embeddings=copies * (embedding.vocab_size or 0) * hidden,
        experts=experts,
        rest=dense,
        hidden_size=hidden,
        used_experts=_used(config, experts),
    )


_NUM_EXPERTS: Final = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_EXPERTS_A_TOKEN: Final = (
    *("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"),
)


def _used(config: Config, experts: int) -> int | None:
    if not experts:
        return 0
    used = config.optional(*_EXPERTS_A_TOKEN)
    return None if used is None else experts * used // config.positive(*_NUM_EXPERTS)


def _network(config: Config, depth: int, hidden: int, model_type: str) -> tuple[int, int]:
    """Parameters of the experts of one layer, and of what else its feed-forward network has."""
    matrices = 2 if model_type.startswith(_ONE_PART) else 3
    count = config.optional(*_NUM_EXPERTS) or 0
    dense = _dense_width(config)
    if not count or not _has_experts(config, depth, model_type):
        return 0, matrices * hidden * dense
    width = config.positive("moe_intermediate_size", "intermediate_size")
    shared = config.optional("moe_shared_expert_intermediate_size") or config.optional(
        "shared_expert_intermediate_size", "shared_intermediate_size"
    )
    if shared is None:
        named = config.optional("n_shared_experts", "num_shared_experts") or 0
        shared = named * width
    if model_type.startswith("llama4"):
        shared = width
    latent = config.optional("moe_latent_size")
    experts = count * matrices * (latent or hidden) * width
    around = 2 * hidden * latent if latent else 0
    return experts, hidden * count + matrices * hidden * shared + around


def _dense_width(config: Config) -> int:
    width = config.optional("intermediate_size_mlp") or config.positive(*_WIDTHS)
    if config.flag("block_auto_adjust_ff_dim"):
        step = config.positive("block_multiple_of", default=256)
        width = -(-(2 * width // 3) // step) * step
    return width


def _has_experts(config: Config, depth: int, model_type: str) -> bool:
    if model_type.startswith(_ONE_PART):
        pattern = config.text("hybrid_override_pattern")
        return not pattern or pattern.replace("|", "")[depth] == "E"
    first = config.optional("first_k_dense_replace", "num_dense_layers") or 0
    step = config.optional("decoder_sparse_step", "interleave_moe_layer_step") or 1
    period = config.optional("expert_layer_period")
    if period:
        return depth % period == (config.optional("expert_layer_offset") or 0)
    dense = config.integers("mlp_only_layers") or ()
    return depth >= first and (depth + 1) % step == 0 and depth not in dense


def _mixer(config: Config, cache: Cache, hidden: int, model_type: str) -> int:
    return sum(rows * columns for rows, columns in _matrices(config, cache, hidden, model_type))


def _matrices(
    config: Config, cache: Cache, hidden: int, model_type: str
) -> Iterator[tuple[int, int]]:
    """Rows and columns of each large matrix of a mixer."""
    match cache:
        case Attention():
            value_dim = cache.value_dim or cache.head_dim
            queries = (cache.query_heads or config.query_heads) * cache.head_dim
            gate = model_type.startswith(_GATED_ATTENTION) and config.flag(
                "attn_output_gate", default=True
            )
            yield hidden, queries * (2 if gate else 1)
            yield hidden, cache.kv_heads * (cache.head_dim + value_dim)
            yield (cache.query_heads or config.query_heads) * value_dim, hidden
        case LatentAttention():
            yield from _latent(config, hidden)
        case GatedDeltaNet():
            keys, values = cache.key_heads * cache.key_dim, cache.value_heads * cache.value_dim
            yield hidden, 2 * keys + 2 * values + 2 * cache.value_heads
            yield values, hidden
        case KimiDeltaAttention():
            width = cache.heads * cache.head_dim
            yield hidden, 4 * width
            yield 2 * cache.head_dim, hidden + width
        case LightningAttention():
            yield 5 * hidden, cache.heads * cache.head_dim
        case Mamba2():
            groups = 2 * cache.groups * cache.state_dim
            yield hidden, 2 * cache.inner_dim + groups + cache.heads
            yield cache.inner_dim, hidden
        case Mamba1():
            yield 3 * hidden, cache.inner_dim
            rank = config.optional("mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
            yield cache.inner_dim, 2 * rank + 3 * cache.state_dim
        case ShortConv():
            yield hidden, 4 * hidden
        case RgLru():
            yield 3 * hidden, cache.width


def _latent(config: Config, hidden: int) -> Iterator[tuple[int, int]]:
    heads, lora = config.query_heads, config.positive("kv_lora_rank")
    rope = config.integer("qk_rope_head_dim")
    nope = config.integer("qk_nope_head_dim", default=128)
    values = config.integer("v_head_dim", default=128)
    if (of_queries := config.optional("q_lora_rank")) is None:
        yield hidden, heads * (nope + rope)
    else:
        yield of_queries, hidden + heads * (nope + rope)
    yield hidden, lora + rope
    yield lora, heads * (nope + values)
    yield heads * values, hidden
