"""The formula of each figure that a plan shows, with its numbers."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from hybrid_blocks.geometry import capacity
from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, Rank
from hybrid_blocks.model.layer import Cache, ChunkedAttention, LatentAttention, LatentIndex, State
from hybrid_blocks.tools.plan.report.figures import Budget, GroupReport, PlanReport
from hybrid_blocks.tools.plan.report.report import Plan
from hybrid_blocks.tools.plan.sglang import RATIO, SglangPlan, draft_states
from hybrid_blocks.tools.plan.vllm import VllmPlan
from hybrid_blocks.tools.plan.vllm.spec import Spec

T = TypeVar("T")

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "live": "tokens that are still read, and states",
        "rounding": "blocks that are not full, or reach out of a window",
        "padding": "pages, strides and empty layers that equalize blocks",
        "null": "the null block, or the slab that holds the null blocks",
        "unused": "room for less than one more request",
        "tail": "memory behind the last whole slab or block",
    }
)
"""Where bytes go, in words."""

HOLDS: Final = "memory holds"


def formulas(name: str, plan: Plan, length: int) -> Iterator[tuple[str, str]]:
    """Formulas of a figure, each with the side that it is of: natural, vLLM, SGLang."""
    if name in PARTS:
        at = plan.at(length)
        yield "natural", _part(name, at.natural.budget)
        if at.vllm is not None:
            yield "vLLM", _part(name, at.vllm.budget)
        return
    if (natural := _named(_NATURAL, name)) is not None:
        yield "natural", natural(plan.natural, length)
    if plan.vllm is not None and (vllm := _named(_VLLM, name)) is not None:
        yield "vLLM", vllm(plan.vllm, length)
    sglang = _named(_SGLANG, name)
    if plan.sglang is None or sglang is None:
        return
    if plan.sglang.state_slots is not None or name != "state slots":
        yield "SGLang", sglang(plan, plan.sglang, length)


def _named(of_side: Mapping[str, T], name: str) -> T | None:
    return next((formula for key, formula in of_side.items() if name.startswith(key)), None)


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


def _slabs(geometry: ArenaPlan, _length: int) -> str:
    return (
        f"floor({geometry.memory_bytes:,} / {geometry.slab_bytes:,} bytes of a slab) = "
        f"{geometry.num_slabs:,}, one of them the null slab"
    )


def _natural_requests(geometry: ArenaPlan, length: int) -> str:
    whole = capacity.requests(geometry, length)
    held = capacity.concurrency(geometry, length)
    first, each = capacity.slabs_of_first(geometry, length), capacity.slabs_of_one(geometry, length)
    usable = geometry.usable_slabs
    ideal = f"{usable:,} / {first:.4f} of a prompt"
    if first <= usable:
        ideal = (
            f"1 + ({usable:,} - {first:.4f} of the last one's prompt) / {each:.4f} of each other"
        )
    return (
        f"{_count(whole)} of {length:,} tokens: {geometry.slabs(whole, length):,} whole slabs, "
        f"one more {geometry.slabs(whole + 1, length):,}; there are {usable:,}. In parts of slabs "
        f"{ideal}, less than {whole + 1:,}: {held:.2f}"
    )


def _natural_tokens(geometry: ArenaPlan, length: int) -> str:
    held = capacity.concurrency(geometry, length)
    return (
        f"int({held:.6f} requests x {length:,}) = {capacity.tokens(geometry, length):,}; "
        f"{_natural_requests(geometry, length)}"
    )


def _natural_blocks(geometry: ArenaPlan, _length: int) -> str:
    group = next((group for group in geometry.groups if group.grows), geometry.groups[0])
    return (
        f"{geometry.usable_slabs:,} slabs x {group.blocks_per_slab:,} blocks of group {group.name} "
        f"= {capacity.growing_blocks(geometry):,}"
    )


def _natural_block(geometry: ArenaPlan, _length: int) -> str:
    group = next((group for group in geometry.groups if group.grows), geometry.groups[0])
    return f"attention kernels take blocks of {group.block_tokens:,} tokens; no page is inflated"


def _natural_longest(geometry: ArenaPlan, length: int) -> str:
    fits = capacity.longest(geometry, length)
    return (
        f"one request of {fits:,} tokens needs {geometry.slabs(1, fits):,} of "
        f"{geometry.usable_slabs:,} slabs; an engine takes up to {length:,}"
    )


def _natural_states(geometry: ArenaPlan, _length: int) -> str:
    groups = sum(group.kind == State.kind for group in geometry.groups)
    return (
        f"{geometry.usable_slabs:,} slabs shared by {groups} state groups = "
        f"{capacity.state_slots(geometry) or 0:,} slots of each"
    )


def _natural_graphs(geometry: ArenaPlan, _length: int) -> str:
    return f"vLLM compares max_num_seqs with the slabs: {geometry.num_slabs:,}"


def _vllm_requests(plan: VllmPlan, length: int) -> str:
    first, each = plan.prefill_blocks(length), plan.decode_blocks(length)
    usable = plan.num_blocks - 1
    if first > usable:
        return f"{usable:,} blocks / {first:,} of a prompt of {length:,} tokens"
    return (
        f"1 + ({usable:,} blocks - {first:,} of the last one's prompt) / {each:,} of a request of "
        f"{length:,} tokens that decodes = {plan.concurrency(length):.2f}"
    )


def _vllm_tokens(plan: VllmPlan, length: int) -> str:
    held = plan.concurrency(length)
    return (
        f"int({held:.6f} requests x {length:,}) = {int(held * length):,}; "
        f"{_vllm_requests(plan, length)}"
    )


def _vllm_blocks(plan: VllmPlan, _length: int) -> str:
    return (
        f"floor({plan.memory_bytes:,} / {plan.block_bytes:,} bytes of the widest group's block) = "
        f"{plan.num_blocks:,}"
    )


def _vllm_block(plan: VllmPlan, _length: int) -> str:
    state = next((group.spec for group in plan.groups if group.spec.kind == "mamba"), None)
    if state is None:
        return f"the backend's blocks of {plan.block_tokens:,} tokens"
    return (
        f"the fewest tokens, {state.page_bytes // plan.block_tokens:,} bytes each, whose page of "
        f"{state.page_bytes:,} bytes holds a state of {state.unpadded_bytes:,}: "
        f"{plan.block_tokens:,}"
    )


def _vllm_longest(plan: VllmPlan, _length: int) -> str:
    fits = plan.longest()
    return (
        f"one request of {fits:,} tokens needs {plan.blocks_per_request(fits):,} of "
        f"{plan.num_blocks - 1:,} blocks; an engine takes up to {plan.max_model_len:,}"
    )


def _vllm_states(plan: VllmPlan, _length: int) -> str:
    groups = sum(group.spec.kind == "mamba" for group in plan.groups)
    return f"floor({plan.num_blocks - 1:,} blocks / {groups} state groups) = {plan.state_slots:,}"


def _vllm_graphs(plan: VllmPlan, _length: int) -> str:
    return f"vLLM compares max_num_seqs with the blocks: {plan.num_blocks:,}"


def _vllm_logs(plan: VllmPlan, _length: int) -> str:
    longest = plan.max_model_len
    counts = Counter(_blocks(group.spec, longest, plan.in_flight_tokens) for group in plan.groups)
    terms = " + ".join(text if n == 1 else f"{n} x {text}" for text, n in counts.items())
    return (
        f"{plan.num_blocks:,} blocks / {plan.blocks_per_request(longest):,} of a request of "
        f"{longest:,} tokens ({terms}) = {plan.max_concurrency:.2f}x; "
        f"int({plan.max_concurrency:.6f} x {longest:,}) = {plan.tokens:,} tokens"
    )


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


def _sglang_slots(plan: Plan, pools: SglangPlan, _length: int) -> str:
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


def _sglang_requests(_plan: Plan, pools: SglangPlan, length: int) -> str:
    windows = states = ""
    if pools.window_tokens is not None:
        windows = f", {pools.window_tokens:,} tokens of windows / {pools.window_held(length):,}"
    if pools.state_slots is not None:
        states = f"floor({pools.state_slots:,} state slots / {pools.slots_per_request}), "
    return (
        f"min({states}max_num_seqs {pools.max_num_seqs:,}, {pools.tokens:,} tokens / {length:,}"
        f"{windows}) = {pools.running(length):.2f}"
    )


def _sglang_tokens(plan: Plan, pools: SglangPlan, length: int) -> str:
    running = pools.running(length)
    return (
        f"int({running:.6f} requests x {length:,}) = {int(running * length):,}; "
        f"{_sglang_requests(plan, pools, length)}"
    )


def _sglang_longest(_plan: Plan, pools: SglangPlan, length: int) -> str:
    return f"min({pools.tokens:,} tokens of the pool, {length:,} that an engine takes)"


_SGLANG: Final[Mapping[str, Callable[[Plan, SglangPlan, int], str]]] = MappingProxyType(
    {
        "state slots": _sglang_slots,
        "tokens": _sglang_tokens,
        "longest": _sglang_longest,
        "requests of": _sglang_requests,
    }
)
_NATURAL: Final[Mapping[str, Callable[[ArenaPlan, int], str]]] = MappingProxyType(
    {
        "slabs": _slabs,
        "requests of": _natural_requests,
        HOLDS: _natural_requests,
        "tokens": _natural_tokens,
        "block tokens": _natural_block,
        "blocks": _natural_blocks,
        "longest": _natural_longest,
        "state slots": _natural_states,
        "max_num_seqs": _natural_graphs,
    }
)
_VLLM: Final[Mapping[str, Callable[[VllmPlan, int], str]]] = MappingProxyType(
    {
        "requests of": _vllm_requests,
        HOLDS: lambda plan, length: f"the whole ones of {_vllm_requests(plan, length)}",
        "tokens": _vllm_tokens,
        "block tokens": _vllm_block,
        "blocks": _vllm_blocks,
        "longest": _vllm_longest,
        "state slots": _vllm_states,
        "max_num_seqs": _vllm_graphs,
        "vLLM logs": _vllm_logs,
    }
)
