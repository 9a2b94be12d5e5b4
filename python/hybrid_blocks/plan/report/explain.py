"""Each formula of a plan with its numbers."""

from hybrid_blocks.model import Model, Rank
from hybrid_blocks.model.layer import Cache, LatentAttention, LatentIndex, State
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.geometry import capacity
from hybrid_blocks.plan.geometry.arena import ArenaPlan, GroupPlan
from hybrid_blocks.plan.vllm import VllmPlan
from hybrid_blocks.plan.vllm.align import state_bytes, token_bytes
from hybrid_blocks.plan.vllm.spec import Spec


def explain(
    model: Model, deployment: Deployment, geometry: ArenaPlan, vllm: VllmPlan | None
) -> tuple[str, ...]:
    """Lines of text, in the order of the calculation."""
    rank = deployment.rank(model)
    layers = model.active_layers(deployment.num_speculative_tokens)
    caches = dict.fromkeys(layer.cache for layer in layers)
    counts = {cache: sum(layer.cache == cache for layer in layers) for cache in caches}
    lines = [
        f"{count} {_name(cache)} layers, each: {_cache(cache, rank)}"
        for cache, count in counts.items()
    ]
    if vllm is not None:
        lines += _vllm(model, rank, vllm)
    lines += _natural(geometry, deployment.length(model))
    return tuple(lines)


def _name(cache: Cache) -> str:
    return cache.family if isinstance(cache, State) else cache.kind


def _cache(cache: Cache, rank: Rank) -> str:
    if isinstance(cache, State):
        tensors = " + ".join(
            f"{tensor.role} {' x '.join(map(str, tensor.shape))} {tensor.dtype}"
            for tensor in cache.tensors(rank)
        )
        return f"{tensors} = {cache.state_bytes(rank):,} bytes a state"
    if isinstance(cache, LatentIndex):
        size = f"index key of {cache.head_dim} bytes and its scales"
    elif isinstance(cache, LatentAttention):
        size = f"latent of {cache.latent_dim} in {rank.kv_dtype}"
    else:
        value_dim = cache.value_dim or cache.head_dim
        of_head = rank.head_bytes(cache.head_dim, value_dim)
        size = (
            f"{cache.token_bytes(rank) // of_head} of {cache.kv_heads} heads (tp {rank.tp}) x "
            f"({cache.head_dim} + {value_dim} in {rank.kv_dtype}: {of_head:,} bytes)"
        )
    return f"{size} = {cache.token_bytes(rank):,} bytes a token"


def _vllm(model: Model, rank: Rank, plan: VllmPlan) -> list[str]:
    lines = []
    if model.is_hybrid:
        lines.append(
            f"vllm: attention block = fewest tokens in kernel steps with tokens x "
            f"{token_bytes(model, rank):,} >= {state_bytes(model, rank):,} bytes: "
            f"{plan.block_tokens:,} tokens"
        )
    lines += [
        f"vllm: group {index}: {len(group.members)} {group.spec.kind} layers"
        + (f" + {group.padding_layers} padding" if group.padding_layers else "")
        + f", pages of {group.spec.page_bytes:,} bytes, {group.spec.block_tokens:,} tokens a block"
        for index, group in enumerate(plan.groups)
    ]
    length = plan.max_model_len
    lines.append(
        f"vllm: blocks = floor({plan.memory_bytes:,} / {plan.block_bytes:,}) = {plan.num_blocks:,}"
    )
    per_request = plan.blocks_per_request(length)
    terms = " + ".join(_blocks(group.spec, length, plan.in_flight_tokens) for group in plan.groups)
    lines.append(f"vllm: blocks of a request of {length:,} tokens = {terms} = {per_request:,}")
    if plan.starts:
        lines += [
            f"vllm: concurrency = {plan.num_blocks:,} / {per_request:,} "
            f"= {plan.max_concurrency:.2f}",
            f"vllm: tokens = int({plan.max_concurrency:.6f} x {length:,}) = {plan.tokens:,}",
        ]
    else:
        lines.append(f"vllm: {per_request:,} blocks and the null block: it does not start")
    lines.append(
        f"vllm: a request holds {plan.decode_blocks(length):,} of {plan.num_blocks - 1:,} blocks "
        f"({plan.prefill_blocks(length):,} while it prefills): {plan.requests(length):,} run at "
        "once, beside the null block"
    )
    return lines


def _blocks(spec: Spec, length: int, in_flight: int) -> str:
    if spec.slots is not None:
        return f"{spec.slots} state slots"
    if spec.encoder_tokens is not None:
        return f"ceil({spec.encoder_tokens:,} / {spec.block_tokens:,})"
    if spec.window is None:
        return f"ceil({length:,} / {spec.block_tokens:,})"
    if spec.kind == "chunked":
        return f"ceil(min({spec.window:,} + {in_flight:,}, {length:,}) / {spec.block_tokens:,})"
    return (
        f"(ceil(min({spec.window:,} - 1 + {in_flight:,}, {length:,}) / {spec.block_tokens:,}) + 1)"
    )


def _natural(geometry: ArenaPlan, length: int) -> list[str]:
    lines = [f"natural: {_group(group)}" for group in geometry.groups]
    lines.append(
        f"natural: slabs = floor({geometry.memory_bytes:,} / {geometry.slab_bytes:,}) = "
        f"{geometry.num_slabs:,}, one of them the null slab"
    )
    pools = zip(
        geometry.pools,
        geometry.decode_blocks(length),
        geometry.prefill_blocks(length),
        strict=True,
    )
    lines += [
        f"natural: pool {index}: a request of {length:,} tokens holds {decode:,} blocks "
        f"({prefill:,} while it prefills), {cut} to a slab"
        for index, (cut, decode, prefill) in enumerate(pools)
    ]
    whole = capacity.requests(geometry, length)
    lines.append(
        f"natural: {whole:,} requests need {geometry.slabs(whole, length):,} slabs, one more "
        f"{geometry.slabs(whole + 1, length):,}; there are {geometry.usable_slabs:,}"
    )
    concurrency = capacity.concurrency(geometry, length)
    lines.append(
        f"natural: tokens = int({concurrency:.6f} x {length:,}) = "
        f"{capacity.tokens(geometry, length):,}"
    )
    return lines


def _group(group: GroupPlan) -> str:
    unit = (
        f"{group.slots_per_request} state slots a request"
        if group.slots_per_request is not None
        else f"{group.block_tokens} tokens a block"
    )
    return (
        f"{group.name}: {len(group.layers)} layers, {unit}, block of {group.block_bytes:,} bytes, "
        f"stride {group.block_stride:,} = slab / {group.blocks_per_slab}"
    )
