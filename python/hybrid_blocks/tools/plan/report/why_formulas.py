"""The formula of each figure that a plan shows, with its numbers."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from hybrid_blocks.geometry import capacity
from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, Rank
from hybrid_blocks.model.layer import Cache, ChunkedAttention, LatentAttention, LatentIndex, State
from hybrid_blocks.tools.plan.report.figures import PARTS, Budget, GroupReport, PlanReport
from hybrid_blocks.tools.plan.report.report import Plan
from hybrid_blocks.tools.plan.sglang import RATIO, SglangPlan, draft_states
from hybrid_blocks.tools.plan.vllm import VllmPlan
from hybrid_blocks.tools.plan.vllm.spec import Spec

HOLDS: Final = "memory holds"
REQUESTS: Final = "requests of "
CUDA_GRAPHS: Final = "max_num_seqs for CUDA graphs"
LOGGED: Final = "vLLM logs"


def formulas(name: str, plan: Plan, length: int) -> Iterator[tuple[str, str]]:
    """Formulas of a figure, each with the side that it is of: natural, vLLM, SGLang."""
    if name in PARTS:
        at = plan.at(length)
        yield "natural", _part(name, at.natural.budget)
        if at.vllm is not None:
            yield "vLLM", _part(name, at.vllm.budget)
        return
    name = REQUESTS if name.startswith(REQUESTS) else name
    sides = {"natural": _of_natural(plan.natural, length)}
    if plan.vllm is not None:
        sides["vLLM"] = _of_vllm(plan.vllm, length)
    if plan.sglang is not None:
        sides["SGLang"] = _of_sglang(plan, plan.sglang, length)
    yield from ((side, of_side[name]) for side, of_side in sides.items() if name in of_side)


def _of_natural(arena: ArenaPlan, length: int) -> dict[str, str]:
    """Return the formula of each figure of slabs by its name."""
    usable = arena.usable_slabs
    whole, held = capacity.requests(arena, length), capacity.concurrency(arena, length)
    first, each = capacity.slabs_of_first(arena, length), capacity.slabs_of_one(arena, length)
    ideal = f"{usable:,} / {first:.4f} of a prompt"
    if first <= usable:
        ideal = (
            f"1 + ({usable:,} - {first:.4f} of the last one's prompt) / {each:.4f} of each other"
        )
    requests = (
        f"{_count(whole)} of {length:,} tokens: {arena.slabs(whole, length):,} whole slabs, "
        f"one more {arena.slabs(whole + 1, length):,}; there are {usable:,}. In parts of slabs "
        f"{ideal}, less than {whole + 1:,}: {held:.2f}"
    )
    growing = next((group for group in arena.groups if group.grows), arena.groups[0])
    states = sum(group.kind == State.kind for group in arena.groups)
    fits = capacity.longest(arena, length)
    return {
        "slabs": f"floor({arena.memory_bytes:,} / {arena.slab_bytes:,} bytes of a slab) = "
        f"{arena.num_slabs:,}, one of them the null slab",
        REQUESTS: requests,
        HOLDS: requests,
        "tokens": f"int({held:.6f} requests x {length:,}) = {capacity.tokens(arena, length):,}; "
        f"{requests}",
        "block tokens": f"attention kernels take blocks of {growing.block_tokens:,} tokens; no "
        "page is inflated",
        "blocks": f"{usable:,} slabs x {growing.blocks_per_slab:,} blocks of group {growing.name} "
        f"= {capacity.growing_blocks(arena):,}",
        "longest request": f"one request of {fits:,} tokens needs {arena.slabs(1, fits):,} of "
        f"{usable:,} slabs; an engine takes up to {length:,}",
        "state slots": f"{usable:,} slabs shared by {states} state groups = "
        f"{capacity.state_slots(arena) or 0:,} slots of each",
        CUDA_GRAPHS: f"vLLM compares max_num_seqs with the slabs: {arena.num_slabs:,}",
    }


def _of_vllm(plan: VllmPlan, length: int) -> dict[str, str]:
    """Return the formula of each figure of vLLM's blocks by its name."""
    usable, first, held = plan.num_blocks - 1, plan.prefill_blocks(length), plan.concurrency(length)
    requests = f"{usable:,} blocks / {first:,} of a prompt of {length:,} tokens"
    if first <= usable:
        requests = (
            f"1 + ({usable:,} blocks - {first:,} of the last one's prompt) / "
            f"{plan.decode_blocks(length):,} of a request of {length:,} tokens that decodes = "
            f"{held:.2f}"
        )
    states = [group.spec for group in plan.groups if group.spec.kind == "mamba"]
    block = f"the backend's blocks of {plan.block_tokens:,} tokens"
    if states:
        page = states[0].page_bytes
        block = (
            f"the fewest tokens, {page // plan.block_tokens:,} bytes each, whose page of {page:,} "
            f"bytes holds a state of {states[0].unpadded_bytes:,}: {plan.block_tokens:,}"
        )
    fits, longest = plan.longest(), plan.max_model_len
    counts = Counter(_blocks(group.spec, longest, plan.in_flight_tokens) for group in plan.groups)
    terms = " + ".join(text if n == 1 else f"{n} x {text}" for text, n in counts.items())
    return {
        REQUESTS: requests,
        HOLDS: f"the whole ones of {requests}",
        "tokens": f"int({held:.6f} requests x {length:,}) = {int(held * length):,}; {requests}",
        "block tokens": block,
        "blocks": f"floor({plan.memory_bytes:,} / {plan.block_bytes:,} bytes of the widest "
        f"group's block) = {plan.num_blocks:,}",
        "longest request": f"one request of {fits:,} tokens needs "
        f"{plan.blocks_per_request(fits):,} of {usable:,} blocks; an engine takes up to "
        f"{longest:,}",
        "state slots": f"floor({usable:,} blocks / {len(states)} state groups) = "
        f"{plan.state_slots or 0:,}",
        CUDA_GRAPHS: f"vLLM compares max_num_seqs with the blocks: {plan.num_blocks:,}",
        LOGGED: f"{plan.num_blocks:,} blocks / {plan.blocks_per_request(longest):,} of a request "
        f"of {longest:,} tokens ({terms}) = {plan.max_concurrency:.2f}x; "
        f"int({plan.max_concurrency:.6f} x {longest:,}) = {plan.tokens:,} tokens",
    }


def _blocks(spec: Spec, length: int, in_flight: int) -> str:
    """Return the blocks of a request in one group, as vLLM counts them at start."""
    if spec.slots is not None:
        return f"{spec.slots} states"
    if spec.encoder_tokens is not None:
        return f"ceil({spec.encoder_tokens:,} / {spec.block_tokens:,})"
    if spec.window is None:
        return f"ceil({length:,} / {spec.block_tokens:,})"
    if spec.kind == ChunkedAttention.kind:
        return f"ceil(min({spec.window:,} + {in_flight:,}, {length:,}) / {spec.block_tokens:,})"
    return (
        f"(ceil(min({spec.window:,} - 1 + {in_flight:,}, {length:,}) / {spec.block_tokens:,}) + 1)"
    )


def _of_sglang(plan: Plan, pools: SglangPlan, length: int) -> dict[str, str]:
    """Return the formula of each figure that SGLang's pools have by its name."""
    running, each, slots, windows = pools.running(length), pools.slots_per_request, "", ""
    if pools.state_slots is not None:
        slots = f"floor({pools.state_slots:,} state slots / {each}), "
    if pools.window_tokens is not None:
        windows = f", {pools.window_tokens:,} tokens of windows / {pools.window_held(length):,}"
    requests = (
        f"min({slots}max_num_seqs {pools.max_num_seqs:,}, {pools.tokens:,} tokens / {length:,}"
        f"{windows}) = {running:.2f}"
    )
    made = {
        REQUESTS: requests,
        "tokens": f"int({running:.6f} requests x {length:,}) = {int(running * length):,}; "
        f"{requests}",
        "longest request": f"min({pools.tokens:,} tokens of the pool, {length:,} that an engine "
        "takes)",
    }
    if pools.state_slots is not None:
        made["state slots"] = _sglang_slots(plan, pools)
    return made


def _sglang_slots(plan: Plan, pools: SglangPlan) -> str:
    state, each = pools.state_bytes, pools.slots_per_request
    if pools.strategy == "off":
        return f"one for each of max_num_seqs {pools.max_num_seqs:,}, without a prefix cache"
    share = f"{plan.memory_bytes:,} x {RATIO:g} / {1 + RATIO:g}"
    if not (drafts := draft_states(plan.deployment)):
        return (
            f"floor(({share} - {state:,} of a slot of padding) / {state:,} bytes of a state) = "
            f"{pools.state_slots:,}; {pools.strategy} keeps {each} for each running request"
        )
    return (
        f"floor(({share} - {state:,} x {1 + drafts}) / ({state:,} bytes of a state x "
        f"(1 + {drafts} to verify a draft / {each}))) = {pools.state_slots:,}"
    )


def layer_formulas(model: Model, deployment: Deployment) -> Iterator[str]:
    """Bytes of a state, or of a token, of the layers of each kind on one rank."""
    layers = model.active_layers(deployment.num_speculative_tokens)
    counts = Counter((layer.cache, deployment.rank_of(layer, model)) for layer in layers)
    for (cache, rank), count in counts.items():
        yield f"{count} {_layer(cache, rank)}"


def _layer(cache: Cache, rank: Rank) -> str:
    if isinstance(cache, State):
        tensors = " + ".join(
            f"{tensor.role} {' x '.join(map(str, tensor.shape))} {tensor.dtype}"
            for tensor in cache.tensors(rank)
        )
        return f"{cache.family}: {tensors} = {cache.state_bytes(rank):,} bytes a state"
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
    return f"{cache.kind}: {size} = {cache.token_bytes(rank):,} bytes a token"


def group_formula(plan: PlanReport, group: GroupReport, length: int) -> str:
    """Return the figures of a row, each from its numbers; ``length`` is the maximum."""
    parts = [
        f"a block is {group.page_bytes:,} bytes of {group.layers} layers = "
        f"{group.page_bytes // group.layers:,} bytes a layer"
    ]
    if group.slots_per_request is None:
        parts[0] += f" for {group.block_tokens:,} tokens"
    if (padding := group.block_bytes - group.page_bytes) > 0:
        empty = f" and {group.padding_layers} empty layers" if group.padding_layers else ""
        parts.append(f"its stride {group.block_bytes:,}, with {padding:,} of padding{empty}")
    if group.slots_per_request is not None:
        parts.append(f"a request holds {group.slots_per_request}: the state and one for each draft")
    else:
        parts.append(f"a request of {length:,} tokens holds {group.blocks_per_request:,} blocks")
    if group.blocks_per_slab and plan.slab_bytes and plan.num_slabs:
        parts.append(
            f"a slab holds floor({plan.slab_bytes:,} / {group.block_bytes:,}) = "
            f"{group.blocks_per_slab:,}"
        )
        if group.num_slots:
            parts.append(
                f"{plan.num_slabs:,} slabs x {group.blocks_per_slab:,} blocks x "
                f"{group.block_tokens:,} tokens = {group.num_slots:,} token slots"
            )
    elif group.num_slots:
        parts.append(
            f"{plan.num_blocks:,} blocks x {group.block_tokens:,} tokens = "
            f"{group.num_slots:,} token slots"
        )
    return "; ".join(parts)


def _part(name: str, budget: Budget) -> str:
    memory = budget.total
    share = 100 * budget.parts[name] / memory
    return (
        f"{PARTS[name]}, with {_count(budget.requests)} of {budget.length:,} tokens: "
        f"{budget.parts[name]:,} of {memory:,} bytes = {share:.2f} %"
    )


def _count(requests: int) -> str:
    return f"{requests:,} request{'' if requests == 1 else 's'}"
